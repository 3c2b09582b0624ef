#include "trestle/pipeline/transport/rank_link.h"

#include <ATen/Functions.h>

#include <array>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/transport/message_header.h"
#include "trestle/pipeline/transport/message_tags.h"
#include "trestle/pipeline/transport/worker_settings.h"

namespace trestle::pipeline {
namespace {

const char* call_name(StepPlan::Call call) {
  switch (call) {
    case StepPlan::Call::Step:
      return "step()";
    case StepPlan::Call::Forward:
      return "forward()";
    case StepPlan::Call::ForwardWithoutGraph:
      return "forward() under no_grad";
    case StepPlan::Call::Evaluate:
      return "evaluate()";
    case StepPlan::Call::Profile:
      return "profile()";
    case StepPlan::Call::FindNonfinite:
      return "find_nonfinite()";
  }
  return "another call";
}

const char* mode_name(StepPlan::Mode mode) {
  return mode == StepPlan::Mode::Evaluation ? "evaluation" : "training";
}

// Collects what differs between this rank's plan and the first rank's.
class PlanDifferences {
 public:
  PlanDifferences(int rank, int first) : rank_(rank), first_(first) {}

  template <class Value>
  void compare(const std::string& what, const Value& own, const Value& firsts) {
    if (own == firsts) return;
    differences_.push_back(text(what, what.empty() ? "" : " ", own, " on rank ", rank_, ", ",
                                firsts, " on rank ", first_));
  }
  void add(const std::string& difference) { differences_.push_back(difference); }
  bool empty() const { return differences_.empty(); }

  void throw_if_any() const {
    if (empty()) return;
    throw UsageError(text("ranks ", rank_, " and ", first_,
                          " of the pipeline make different calls: ", join(differences_, "; ")),
                     {.rank = rank_,
                      .hint = "All ranks make the same calls in the same order, with the same "
                              "options and mini-batches of the same size."});
  }

 private:
  const int rank_, first_;
  std::vector<std::string> differences_;
};

void check_same_call(const StepPlan& own, const StepPlan& firsts, int rank, int first) {
  PlanDifferences differences(rank, first);
  differences.compare<std::string>("", call_name(own.call), call_name(firsts.call));
  if (differences.empty()) {
    differences.compare("step number", own.step_number, firsts.step_number);
    differences.compare("first_micro_batch", own.first_micro_batch, firsts.first_micro_batch);
    differences.compare("gradient_scale", own.gradient_scale, firsts.gradient_scale);
    if (own.call != StepPlan::Call::Evaluate)
      differences.compare<std::string>("mode", mode_name(own.mode), mode_name(firsts.mode));
    differences.compare<std::string>("StepOptions::update", own.updates ? "Now" : "Later",
                                     firsts.updates ? "Now" : "Later");
    if (own.loss != firsts.loss) differences.add("the losses have different names");
    if (own.autocast != firsts.autocast)
      differences.add("the callers' threads have different autocast settings");
  }
  if (own.samples > 0) differences.compare("mini-batch size", own.samples, firsts.samples);
  differences.throw_if_any();
}

}  // namespace

RankLink::RankLink(comm::Group group, int first, int last, std::uint32_t number)
    : group_(group.with_check(comm::Check::Off)),
      first_(first),
      last_(last),
      serial_(std::uint64_t{number} << calls_bits),
      receiver_(worker_settings(1)),
      sender_(worker_settings(1)) {}

template <class Record>
Record RankLink::broadcast(const Record& own, int from, int tag) {
  static_assert(std::is_trivially_copyable_v<Record>);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizeof(Record))}, at::kByte);
  Record record = own;
  if (rank() != from) {
    receive(bytes, from, tag).wait();
    std::memcpy(&record, bytes.const_data_ptr(), sizeof(Record));
    return record;
  }
  std::memcpy(bytes.data_ptr(), &own, sizeof(Record));
  std::vector<comm::Work> sent;
  for (int to = 0; to < size(); ++to) {
    if (to != from) sent.push_back(send(bytes, to, tag));
  }
  keep_until_sent(std::move(sent), [](const std::exception_ptr&) {});
  return record;
}

// Pipelines on one group use the same tags, so two that run at once would get each other's
// messages.
void RankLink::check_pipeline(std::uint64_t serial, int from) const {
  if (serial >> calls_bits == serial_ >> calls_bits) return;
  throw StateError(
      text("rank ", rank(), " waited for its pipeline's next call on rank ", from,
           ", but another pipeline on the same group sent a call"),
      {.rank = rank(),
       .hint = "Call the pipelines of one group one after the other, in the same order on all "
               "ranks. To call two at once, give each a group of its own: make_group()."});
}

StepPlan RankLink::agree(StepPlan own) {
  own.serial = ++serial_;
  const StepPlan plan = broadcast(own, first_, plan_tag);
  check_pipeline(plan.serial, first_);
  check_same_call(own, plan, rank(), first_);
  return plan;
}

StepOutcome RankLink::share(StepOutcome own) {
  own.serial = serial_;
  const StepOutcome outcome = broadcast(own, last_, outcome_tag);
  check_pipeline(outcome.serial, last_);
  return outcome;
}

void RankLink::agree_on_backward(std::uint64_t serial) {
  ++backwards_;
  const std::uint64_t lasts = broadcast(serial, last_, backward_tag);
  if (lasts == serial) return;
  check_pipeline(lasts, last_);
  throw UsageError(
      text("rank ", rank(), " runs the backward of call ", call_of(serial),
           " of the pipeline, but rank ", last_, " runs that of call ", call_of(lasts)),
      {.rank = rank(),
       .hint = "Over ranks call each forward()'s backward before the next forward()."});
}

comm::Work RankLink::send(const at::Tensor& tensor, int to, int tag) {
  return group_.send(tensor, to, tag);
}

comm::Work RankLink::receive(const at::Tensor& tensor, int from, int tag) {
  return group_.receive(tensor, from, tag);
}

void RankLink::keep_until_sent(std::vector<comm::Work> sent,
                               std::function<void(std::exception_ptr)> done) {
  sender_.add([sent = std::move(sent), done = std::move(done)]() mutable {
    std::exception_ptr failure;
    try {
      for (auto& work : sent) work.wait();
    } catch (...) {
      failure = std::current_exception();
    }
    sent.clear();
    done(failure);
  });
}

}  // namespace trestle::pipeline
