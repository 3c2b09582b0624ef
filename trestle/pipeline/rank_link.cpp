#include "trestle/pipeline/rank_link.h"

#include <ATen/Functions.h>

#include <array>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/message_header.h"

namespace trestle::pipeline {
namespace {

// Messages of stages have higher ones (distributed_transport.cpp).
enum Tag : int { plan_tag = 1, outcome_tag = 2, backward_tag = 3 };

const char* name_of(StepPlan::Call call) {
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

const char* name_of(StepPlan::Mode mode) {
  return mode == StepPlan::Mode::Evaluation ? "evaluation" : "training";
}

template <class Value>
void compare_plans(std::vector<std::string>& differences, const char* what, const Value& own,
                   const Value& theirs) {
  if (own != theirs) differences.push_back(text(what, " ", own, ", there ", theirs));
}

void check_same(const StepPlan& own, const StepPlan& theirs, int rank, int first) {
  std::vector<std::string> differences;
  compare_plans<std::string>(differences, "calls", name_of(own.call), name_of(theirs.call));
  if (differences.empty()) {
    compare_plans(differences, "has step number", own.step_number, theirs.step_number);
    compare_plans(differences, "has first_micro_batch", own.first_micro_batch,
                  theirs.first_micro_batch);
    compare_plans(differences, "has gradient_scale", own.gradient_scale, theirs.gradient_scale);
    if (own.call != StepPlan::Call::Evaluate)
      compare_plans<std::string>(differences, "is in mode", name_of(own.mode),
                                 name_of(theirs.mode));
    if (own.updates != theirs.updates)
      differences.emplace_back(own.updates ? "changes the weights (StepOptions::update), there not"
                                           : "leaves the weights (StepOptions::update), there not");
    if (own.loss != theirs.loss) differences.emplace_back("has another loss than there");
    if (own.autocast != theirs.autocast)
      differences.emplace_back("has another autocast in the caller's thread than there");
  }
  if (own.samples > 0)
    compare_plans(differences, "has a mini-batch of samples", own.samples, theirs.samples);
  if (differences.empty()) return;
  throw UsageError(text("rank ", rank, " of the pipeline does something else than rank ", first,
                        ": it ", join(differences, "; ")),
                   {.rank = rank,
                    .hint = "All ranks make the same calls in the same order, with the same "
                            "options and mini-batches of the same size."});
}

}  // namespace

RankLink::RankLink(comm::Group group, int first, int last, std::uint32_t number)
    : group_(group.with_check(comm::Check::Off)),
      first_(first),
      last_(last),
      serial_(std::uint64_t{number} << calls_bits),
      receiver_(1),
      sender_(1) {}

// One rank's record goes to all; the others return it.
template <class Record>
Record RankLink::from_one(const Record& own, int from, int tag) {
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

// Pipelines on one group have the same tags: one that runs beside another would take its numbers.
void RankLink::check_own(std::uint64_t serial, int from) const {
  if (serial >> calls_bits == serial_ >> calls_bits) return;
  throw StateError(
      text("rank ", rank(), " waited for its pipeline's next call on rank ", from,
           ", and that of another pipeline on the same group came"),
      {.rank = rank(),
       .hint = "Pipelines on one group run one after the other, in the same order on all "
               "ranks; for two at once give each a group of its own: make_group()."});
}

StepPlan RankLink::agree(StepPlan own) {
  own.serial = ++serial_;
  const StepPlan plan = from_one(own, first_, plan_tag);
  check_own(plan.serial, first_);
  check_same(own, plan, rank(), first_);
  return plan;
}

StepOutcome RankLink::share(StepOutcome own) {
  own.serial = serial_;
  const StepOutcome outcome = from_one(own, last_, outcome_tag);
  check_own(outcome.serial, last_);
  return outcome;
}

void RankLink::agree_on_backward(std::uint64_t serial) {
  ++backwards_;
  const std::uint64_t theirs = from_one(serial, last_, backward_tag);
  if (theirs == serial) return;
  check_own(theirs, last_);
  throw UsageError(
      text("rank ", rank(), " runs the backward of call ", call_of(serial),
           " of the pipeline, and rank ", last_, " that of call ", call_of(theirs)),
      {.rank = rank(),
       .hint = "Over ranks each forward()'s backward comes before the next forward()."});
}

comm::Work RankLink::send(const at::Tensor& tensor, int to, int tag) {
  return group_.send(tensor, to, tag);
}

comm::Work RankLink::receive(const at::Tensor& tensor, int from, int tag) {
  return group_.receive(tensor, from, tag);
}

void RankLink::keep_until_sent(std::vector<comm::Work> sent,
                               std::function<void(std::exception_ptr)> done) {
  sender_.run([sent = std::move(sent), done = std::move(done)]() mutable {
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
