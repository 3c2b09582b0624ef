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
#include "trestle/pipeline/transport/first_parts.h"

namespace trestle::pipeline {

// A call that all ranks of a pipeline make together. The first rank sends its plan before the call
// begins, and all other ranks compare it with their own.
struct StepPlan {
  enum class Call : std::int64_t {
    Step,
    Forward,
    ForwardWithoutGraph,
    Evaluate,
    Profile,
    FindNonfinite
  };
  // Which of Pipeline::train() and eval() was called last. Single layers of a rank may be in the
  // other mode, in a model that is trained in part.
  enum class Mode : std::int64_t { AsMade, Training, Evaluation };

  std::uint64_t serial = 0;  // of the sender; set by RankLink
  Call call = Call::Step;
  Mode mode = Mode::AsMade;
  std::int64_t samples = 0;  // of the mini-batch; 0 if all its tensors are None on this rank
  std::int64_t step_number = 0, first_micro_batch = 0;
  double gradient_scale = 1;
  std::uint64_t loss = 0;      // a hash of its name
  std::uint64_t autocast = 0;  // the caller's, as a number
  bool updates = false;        // whether the step changes the weights
  std::uint64_t given = 0;     // which inputs of the model are tensors: input_bits()
};

// The last rank sends it to all other ranks when a step is done.
struct StepOutcome {
  std::uint64_t serial = 0;  // set by RankLink
  double loss = 0, weight = 0;
};

// One rank's connection to the other ranks of its pipeline: the group, a thread that waits for
// messages, and a thread that waits until sent messages have arrived.
class RankLink {
 public:
  // `first` and `last`: the ranks of the first and the last stage. `number`: identifies this
  // pipeline among those on the same group; the same on all ranks.
  RankLink(comm::Group group, int first, int last, std::uint32_t number);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool is_first() const { return rank() == first_; }
  bool is_last() const { return rank() == last_; }
  std::chrono::milliseconds deadline() const { return group_.deadline(); }

  // Begins a call: returns the first rank's plan. Throws UsageError if this rank's plan differs,
  // and StateError for a message of another pipeline on the group. On the first rank `own.samples`
  // must be set.
  StepPlan agree(StepPlan own);
  // Ends a step: returns the last rank's outcome.
  StepOutcome share(StepOutcome own);
  // Begins a caller's backward, of the forward() with this serial number.
  void agree_on_backward(std::uint64_t serial);
  // How many backwards have begun on this rank.
  std::uint64_t backwards() const { return backwards_; }

  // Throws StateError if `serial`, from rank `from`, belongs to another pipeline.
  void check_pipeline(std::uint64_t serial, int from) const;

  // The number of this pipeline and of its current call (message_header.h). It is the same on all
  // ranks, because all make the same calls.
  std::uint64_t serial() const { return serial_; }

  // Without comm's check of matching calls: the messages identify themselves.
  comm::Work send(const at::Tensor& tensor, int to, int tag);
  comm::Work receive(const at::Tensor& tensor, int from, int tag);
  // Keeps the tensors of `sent` until they have arrived. Then calls `done`, with the error if there
  // was one.
  void keep_until_sent(std::vector<comm::Work> sent, std::function<void(std::exception_ptr)> done);
  void in_background(std::function<void()> job) { receiver_.add(std::move(job)); }

  comm::Group& group() { return group_; }
  FirstParts& first_parts() { return first_parts_; }

  // Bytes of tensors sent to other ranks, without message headers, since the link was made.
  void count_sent(Bytes bytes) { sent_ += bytes; }
  Bytes bytes_sent() const { return sent_; }

 private:
  // Sends the record of rank `from` to all ranks. Returns it.
  template <class Record>
  Record broadcast(const Record& own, int from, int tag);

  comm::Group group_;
  int first_, last_;
  std::uint64_t serial_;
  std::atomic<std::uint64_t> backwards_ = 0;
  std::atomic<Bytes> sent_ = 0;
  FirstParts first_parts_;
  comm::JobThread receiver_, sender_;
};

}  // namespace trestle::pipeline
