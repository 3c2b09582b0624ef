#pragma once

#include <memory>

namespace trestle::comm {

// A collective, send or receive under way. The tensors that it reads and writes are kept alive until
// it is done, also if the Work itself is let go; nobody may write to them before.
//
//   auto work = group.all_reduce(gradient);
//   ...                                        // computes meanwhile
//   work.wait();
class Work {
 public:
  class State;

  Work() = default;  // done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Returns when it is done: what was received is there, what was sent may be written to. Throws
  // DeadlineError after the group's deadline, RankError where another rank failed or asked for
  // something else (UsageError on a rank whose own request was at fault cannot be told apart from
  // that, so it is RankError there too). May be called again, and from another thread.
  void wait();
  bool done() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trestle::comm
