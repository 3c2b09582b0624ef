#pragma once

#include <memory>

namespace trestle::comm {

// A collective, send or receive under way. The tensors that it reads and writes are kept alive until
// it is done, also if the Work itself is let go; nobody may write to them before.
//
//   auto work = group.all_reduce(gradient);
//   compute();
//   work.wait();
class Work {
 public:
  class State;

  Work() = default;  // done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Returns when it is done: what was received is there, what was sent may be written to. Throws
  // DeadlineError after the group's deadline (of a message from here on, of a collective of processes
  // also from when it began), RankError where another rank failed or asked for something else, which is
  // the same on the rank that asked. Either ends the world's communication. May be called again, and
  // from another thread.
  void wait();
  // Whether it is, with or without an error. Of a message without a check this may come true a little
  // later than it is.
  bool done() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trestle::comm
