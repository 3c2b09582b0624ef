#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trestle/comm/connection_aborter.h"
#include "trestle/comm/control_plane.h"
#include "trestle/comm/group.h"
#include "trestle/comm/request.h"

namespace trestle::comm {

// One rank's end of a group: it executes requests. Any thread may call it. The order of the calls
// is the order of the collectives.
class Connection {
 public:
  struct Place {
    int rank = 0;            // in the group
    std::vector<int> ranks;  // the group's ranks, by their numbers in the world
    std::chrono::milliseconds deadline{};
    std::shared_ptr<ControlPlane> control;
  };

  explicit Connection(Place place) : place_(std::move(place)) {}
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const Place& place() const { return place_; }
  int size() const { return static_cast<int>(place_.ranks.size()); }

  // Sets the order number of the request's fingerprint. GPU tensors without a GPU backend go
  // through the CPU.
  virtual Work collective(Request request, Check check) = 0;
  virtual Work message(Request request, Check check) = 0;  // send or receive

  // Everything in flight, and every later request, ends with RankError(reason).
  virtual void abort(const std::string& reason) = 0;

  const std::shared_ptr<ConnectionAborter>& aborter() const { return aborter_; }

 private:
  const Place place_;
  // Each subclass retires it before its destruction begins.
  const std::shared_ptr<ConnectionAborter> aborter_ = std::make_shared<ConnectionAborter>(*this);
};

}  // namespace trestle::comm
