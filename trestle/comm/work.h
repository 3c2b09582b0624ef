#pragma once

#include <chrono>
#include <memory>

namespace trestle::comm {

// A collective, send or receive in flight. It keeps its tensors alive until it is done, even if the
// Work is destroyed. They must not be written to before.
//
//   auto work = group.all_reduce(gradient);
//   compute();
//   work.wait();
class Work {
 public:
  class State;

  Work() = default;  // done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Waits until it is done: received data have arrived, sent tensors may be overwritten. Throws
  // DeadlineError after the group's deadline (counted from this call; for collectives of processes
  // also from their start). Throws RankError if another rank failed or called a different
  // operation. Either ends the world's communication. May be called again, and from another thread.
  void wait();
  // The same, but waits at most for `time`; then returns false, and the caller must fail the world
  // (Group::fail): the backend may have closed the group's connections. They stay open while
  // another thread waits for this Work.
  bool wait_for(std::chrono::milliseconds time);
  // Whether it is done, with or without an error. For a message without a check it may turn true
  // with a short delay.
  bool done() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trestle::comm
