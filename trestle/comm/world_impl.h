#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/connection.h"
#include "trestle/comm/control.h"
#include "trestle/comm/world.h"

namespace trestle {

// One rank's world. What differs between ranks that are threads and ranks that are processes is how
// a group is made, and the Control.
class World::Impl {
 public:
  struct Facts {
    int rank = 0, size = 1, local_rank = 0, local_size = 1, restart = 0;
    std::string backend = {}, started_by = {};
    std::string machine = {};  // devices of one name are the same ones if this is the same
    std::chrono::milliseconds deadline{};
  };

  Impl(Facts facts, std::shared_ptr<comm::Control> control)
      : facts_(std::move(facts)), control_(std::move(control)) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Facts& facts() const { return facts_; }
  const std::shared_ptr<comm::Control>& control() const { return control_; }
  const comm::Group& group() const { return group_; }

  // The world's `number`-th group, 0 being all; the caller has checked `ranks`.
  virtual std::shared_ptr<comm::Connection> connect(int number, const std::vector<int>& ranks) = 0;
  void connect_all();
  comm::Group make_group(const std::vector<int>& ranks);

 protected:
  // This rank's place in a group, or nothing if it is not in it.
  std::optional<comm::Connection::Place> place_in(const std::vector<int>& ranks) const;
  // For destructors: a world that goes because of an exception says so to the others, who would wait.
  void fail_if_unwinding();
  void forget_group() { group_ = {}; }

 private:
  const Facts facts_;
  const std::shared_ptr<comm::Control> control_;
  comm::Group group_;
  std::mutex mutex_;
  int groups_ = 0;
  const int exceptions_ = std::uncaught_exceptions();  // at birth
};

}  // namespace trestle
