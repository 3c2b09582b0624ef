#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace trestle::simulate {

// Calls functions in the order of their simulated times.
class EventQueue {
 public:
  double now() const { return now_; }

  // Calls `what` at `time`, which is not before now(). Functions of one time are called in the
  // order of the calls of at().
  void at(double time, std::function<void()> what) {
    events_.push({time, ++added_, std::move(what)});
  }

  void run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.what();
    }
  }

 private:
  struct Event {
    double time;
    std::uint64_t number;
    std::function<void()> what;

    friend bool operator>(const Event& a, const Event& b) {
      return std::pair(a.time, a.number) > std::pair(b.time, b.number);
    }
  };

  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t added_ = 0;
  double now_ = 0;
};

}  // namespace trestle::simulate
