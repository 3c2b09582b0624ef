#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "trestle/sharding/unit_gatherer.h"

namespace trestle::sharding {

class UnitGatherer::Call {
 public:
  Call(std::weak_ptr<UnitGatherer> owner, std::size_t unit) : owner(std::move(owner)), unit(unit) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (!running) return;
    const auto gatherer = owner.lock();
    if (!gatherer) return;
    const std::lock_guard lock(gatherer->mutex_);
    try {
      for (const std::size_t g : gatherer->units_[unit].groups) {
        --gatherer->states_[g].holders;
        gatherer->let_go(g);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // What was being gathered failed, which all ranks' next call says.
    }
  }

  std::weak_ptr<UnitGatherer> owner;
  std::size_t unit;
  std::optional<std::size_t> begun = {},
                             place = {};  // where it began and ended in the order, in training
  int inputs = 0;                         // whose gradients tell that the unit's backward is done
  int inputs_left = 0;                    // of them in this backward
  bool running = false;                   // between begin() and end()
  bool trains = false;
  bool in_backward = false;
  ShardRecorder::Entry entry;
};

}  // namespace trestle::sharding
