#include "trestle/sharding/reduce/rank_handshake.h"

#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"

namespace trestle::sharding {
namespace {

using Call = RankHandshake::Call;

enum Field : std::uint8_t { What, Backward, HasWeight, Weight, TrainedHash, Sync, fields };

const char* words_of(Call call) {
  switch (call) {
    case Call::TrainingForward:
      return "a training forward";
    case Call::Evaluation:
      return "an evaluation, which is a forward without gradients";
    case Call::Unshard:
      return "unshard()";
    case Call::State:
      return "state()";
    case Call::Backward:
      break;
  }
  return "a backward";
}

// Throws StateError where the message of `rank` differs from this rank's.
void compare_with_rank(int rank, const double* theirs, const RankHandshake::Content& own) {
  if (theirs[What] != static_cast<double>(own.call)) {
    throw StateError(
        text("rank ", rank, " begins ", words_of(static_cast<Call>(static_cast<int>(theirs[What]))),
             ", this rank ", words_of(own.call)),
        {.hint = "The ranks hold shards of the model: all of them call forward(), backward(), "
                 "unshard() and state() together. Evaluate on all ranks, each on its share, or "
                 "load state() into a plain model on one rank."});
  }
  if (theirs[Backward] != static_cast<double>(own.backward)) {
    throw StateError(text("rank ", rank, " is in backward number ", theirs[Backward],
                          ", this rank in number ", own.backward),
                     {.hint = "All ranks must run the same number of backwards, inside and outside "
                              "of no_sync()."});
  }
  if ((theirs[Sync] != 0) != own.sync) {
    throw StateError(text("rank ", rank, " runs backward number ", own.backward,
                          own.sync ? " inside no_sync(), this rank outside"
                                   : " outside of no_sync(), this rank inside"),
                     {.hint = "All ranks must run the same backwards inside no_sync()."});
  }
  const bool weighted = theirs[HasWeight] != 0;
  if (weighted != own.weight.has_value()) {
    throw StateError(text("rank ", rank, " calls backward() ", weighted ? "with" : "without",
                          " a weight, this rank ", own.weight ? "with one" : "without one"),
                     {.hint = "Give backward() a weight on all ranks or on none."});
  }
  if (theirs[TrainedHash] != own.trained_hash) {
    throw StateError(text("rank ", rank, " trains other parameters than this rank"),
                     {.hint = "Freeze the same parameters (requires_grad) on all ranks."});
  }
}

}  // namespace

RankHandshake::RankHandshake(const comm::Group& group, const Content& own)
    : group_(group), own_(own) {
  if (group_.size() == 1) return;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
  sent_ = at::empty({fields}, options);
  auto* values = sent_.mutable_data_ptr<double>();
  values[What] = static_cast<double>(own.call);
  values[Backward] = static_cast<double>(own.backward);
  values[HasWeight] = own.weight ? 1 : 0;
  values[Weight] = own.weight.value_or(1);
  values[TrainedHash] = own.trained_hash;
  values[Sync] = own.sync ? 1 : 0;
  received_ = at::empty({group_.size() * fields}, options);
  work_ = group_.all_gather(received_, sent_);
}

void RankHandshake::check() {
  if (!received_.defined()) return;
  comm::with_purpose([] { return "while the ranks compared what they are about to do"; },
                     [&] { work_.wait(); });
  const auto* values = received_.const_data_ptr<double>();
  for (int rank = 0; rank < group_.size(); ++rank)
    compare_with_rank(group_.ranks().at(static_cast<std::size_t>(rank)), values + fields * rank,
                      own_);
}

double RankHandshake::total_weight() const {
  if (group_.size() == 1) return own_.weight.value_or(1);
  const auto* values = received_.const_data_ptr<double>();
  double total = 0;
  for (int rank = 0; rank < group_.size(); ++rank) total += values[fields * rank + Weight];
  return total;
}

}  // namespace trestle::sharding
