#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trestle/comm/control.h"
#include "trestle/comm/group.h"
#include "trestle/comm/request.h"

namespace trestle::comm {

// One rank's end of a group: an engine that carries out requests. May be called from several threads,
// but the order of collectives is the order of calls.
class Connection {
 public:
  struct Place {
    int rank = 0;            // in the group
    std::vector<int> ranks;  // numbers in the world
    std::chrono::milliseconds deadline{};
    std::shared_ptr<Control> control;
  };

  explicit Connection(Place place) : place_(std::move(place)) {}
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const Place& place() const { return place_; }
  int size() const { return static_cast<int>(place_.ranks.size()); }

  // The request's print has no order number yet. A request for GPU memory is moved as the engine can.
  virtual Work collective(Request request, Check check) = 0;
  virtual Work message(Request request, Check check) = 0;  // send or receive

  // Ends all that is under way, and all that comes later, with RankError(reason).
  virtual void break_off(const std::string& reason) = 0;

  const std::shared_ptr<Breaker>& breaker() const { return breaker_; }

 private:
  const Place place_;
  // Each kind of connection retires it before it goes.
  const std::shared_ptr<Breaker> breaker_ = std::make_shared<Breaker>(*this);
};

}  // namespace trestle::comm
