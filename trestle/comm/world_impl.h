#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/connection.h"
#include "trestle/comm/control_plane.h"
#include "trestle/comm/world.h"

namespace trestle {

// One rank's world. Subclasses for ranks that are threads and for ranks that are processes make
// groups and the ControlPlane.
class World::Impl {
 public:
  struct Facts {
    int rank = 0, size = 1, local_rank = 0, local_size = 1, restart = 0;
    std::string backend = {}, started_by = {};
    std::string machine = {};  // a device name means the same device on ranks of one machine
    std::vector<std::string> machines = {};  // by rank; empty if all ranks are on one
    std::chrono::milliseconds deadline{};
  };

  Impl(Facts facts, std::shared_ptr<comm::ControlPlane> control)
      : facts_(std::move(facts)), control_(std::move(control)) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Facts& facts() const { return facts_; }
  const std::shared_ptr<comm::ControlPlane>& control() const { return control_; }
  const comm::Group& group() const { return group_; }

  // The world's `number`-th group; number 0 has all ranks. The caller has checked `ranks`.
  virtual std::shared_ptr<comm::Connection> connect(int number, const std::vector<int>& ranks) = 0;
  void connect_all();
  comm::Group make_group(const std::vector<int>& ranks);

 protected:
  // This rank's place in a group of these ranks, or nothing if it is not one of them.
  std::optional<comm::Connection::Place> place_in(const std::vector<int>& ranks) const;
  // For destructors: if an exception destroys the world, fails it, so that other ranks do not wait.
  void fail_if_unwinding();
  void forget_group() { group_ = {}; }

 private:
  const Facts facts_;
  const std::shared_ptr<comm::ControlPlane> control_;
  comm::Group group_;
  std::mutex mutex_;
  int groups_ = 0;
  const int exceptions_ = std::uncaught_exceptions();  // at construction
};

}  // namespace trestle
