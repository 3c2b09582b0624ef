#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/comm/group.h"
#include "trestle/comm/job_thread.h"

namespace trestle::pipeline {

// What the ranks of a pipeline tell each other about one call before it begins: the first rank says
// it, and every other one compares what it knows itself.
struct StepPlan {
  enum class Call : std::int64_t {
    Step,
    Forward,
    ForwardWithoutGraph,
    Evaluate,
    Profile,
    FindNonfinite
  };
  // What Pipeline::train() or eval() said last. A rank may have some of its layers in another mode, as
  // those of a model that is trained in part.
  enum class Mode : std::int64_t { AsMade, Training, Evaluation };

  std::uint64_t serial = 0;  // whose plan it is: RankLink's own
  Call call = Call::Step;
  Mode mode = Mode::AsMade;
  std::int64_t samples = 0;  // of the mini-batch; the first rank knows
  std::int64_t step_number = 0, first_micro_batch = 0;
  double gradient_scale = 1;
  std::uint64_t loss = 0;      // a hash of its name
  std::uint64_t autocast = 0;  // the caller's, as a number
  bool updates = false;        // does the step change the weights?
  std::uint64_t given = 0;     // which of the model's inputs are there: a bit each, of the first 64
};

// What the last rank tells the others when a step is done.
struct StepOutcome {
  std::uint64_t serial = 0;  // RankLink's own
  double loss = 0, weight = 0;
};

// One rank's end of a pipeline over ranks, for all its steps: the group, a thread that waits for
// what comes and one that waits until what was sent has arrived.
class RankLink {
 public:
  // `first` and `last`: the ranks of the first and the last stage. `number`: of this pipeline, the
  // same on all ranks, so that a message of another one on the same group is told from its own.
  RankLink(comm::Group group, int first, int last, std::uint32_t number);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool is_first() const { return rank() == first_; }
  bool is_last() const { return rank() == last_; }
  std::chrono::milliseconds deadline() const { return group_.deadline(); }

  // Both begin or end a call, and wait for one rank. Throw UsageError where this rank does something
  // else than the first one. On the first rank `own` must have the number of samples.
  // Throw StateError where what came is of another pipeline on the group.
  StepPlan agree(StepPlan own);
  StepOutcome share(StepOutcome own);
  // The same for a caller's backward: the last rank begins it. Says which forward, by its serial.
  void agree_on_backward(std::uint64_t serial);

  // How many of them began here.
  std::uint64_t backwards() const { return backwards_; }

  // Throws StateError where a serial from rank `from` is another pipeline's.
  void check_own(std::uint64_t serial, int from) const;

  // The number of the pipeline and of the call (message_header.h): the same on all ranks, since all
  // make the same calls.
  std::uint64_t serial() const { return serial_; }

  // Not compared with what the other end does: for messages that say what they are.
  comm::Work send(const at::Tensor& tensor, int to, int tag);
  comm::Work receive(const at::Tensor& tensor, int from, int tag);
  // Keeps `sent` until it has arrived, then calls `done`, with what went wrong if something did.
  void keep_until_sent(std::vector<comm::Work> sent, std::function<void(std::exception_ptr)> done);
  void in_background(std::function<void()> job) { receiver_.add(std::move(job)); }

  comm::Group& group() { return group_; }

  // Of tensors that went to other ranks, since the link was made; without what messages begin with.
  void count_sent(Bytes bytes) { sent_ += bytes; }
  Bytes bytes_sent() const { return sent_; }

 private:
  template <class Record>
  Record from_one(const Record& own, int from, int tag);

  comm::Group group_;
  int first_, last_;
  std::uint64_t serial_;
  std::atomic<std::uint64_t> backwards_ = 0;
  std::atomic<Bytes> sent_ = 0;
  comm::JobThread receiver_, sender_;
};

}  // namespace trestle::pipeline
