#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "trestle/sharding/unshard/parameter_unsharder.h"

namespace trestle::sharding {

class ParameterUnsharder::Call {
 public:
  Call(std::weak_ptr<ParameterUnsharder> owner, std::size_t unit)
      : owner(std::move(owner)), unit(unit) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (!running) return;
    const auto unsharder = owner.lock();
    if (!unsharder) return;
    const std::lock_guard lock(unsharder->mutex_);
    try {
      for (const std::size_t g : unsharder->units_[unit].groups) {
        --unsharder->states_[g].holders;
        unsharder->release(g);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // The gather failed. The next call on each rank throws the reason.
    }
  }

  std::weak_ptr<ParameterUnsharder> owner;
  std::size_t unit;
  std::optional<std::size_t> begun = {}, ended = {};  // places in the order, in training
  int inputs = 0;        // that need a gradient: the unit's backward is done when all came
  int inputs_left = 0;   // of them, in this backward
  bool running = false;  // between begin() and end()
  bool trains = false;
  bool in_backward = false;
  ShardRecorder::Entry entry;
};

}  // namespace trestle::sharding
