#include "trestle/sharding/backward_handshake.h"

#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

constexpr std::int64_t fields = 5;

}  // namespace

BackwardHandshake::BackwardHandshake(const comm::Group& group, const Content& own)
    : group_(group), own_(own) {
  if (group_.size() == 1) return;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
  sent_ = at::empty({fields}, options);
  auto* values = sent_.mutable_data_ptr<double>();
  values[0] = static_cast<double>(own.backward);
  values[1] = own.weight ? 1 : 0;
  values[2] = own.weight.value_or(1);
  values[3] = own.trained_hash;
  values[4] = own.sync ? 1 : 0;
  headers_ = at::empty({group_.size() * fields}, options);
  work_ = group_.all_gather(headers_, sent_);
}

void BackwardHandshake::check() {
  if (!headers_.defined()) return;
  work_.wait();
  const auto* values = headers_.const_data_ptr<double>();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const double* theirs = values + fields * rank;
    const int number = group_.ranks().at(static_cast<std::size_t>(rank));
    if (theirs[0] != static_cast<double>(own_.backward)) {
      throw StateError(
          text("rank ", number, " is in its backward number ", theirs[0], ", this one in number ",
               own_.backward),
          {.hint =
               "All ranks make the same number of backwards, inside and outside of no_sync()."});
    }
    if ((theirs[4] != 0) != own_.sync) {
      throw StateError(text("rank ", number, " makes its backward number ", own_.backward,
                            own_.sync ? " inside no_sync(), this one outside"
                                      : " outside of no_sync(), this one inside"),
                       {.hint = "All ranks make the same backwards inside of no_sync()."});
    }
    if ((theirs[1] != 0) != own_.weight.has_value()) {
      throw StateError(
          text("rank ", number,
               theirs[1] != 0 ? " gives its backward a weight" : " gives its backward no weight",
               ", this one ", own_.weight ? "does" : "does not"),
          {.hint = "Give backward() a weight on all ranks or on none."});
    }
    if (theirs[3] != own_.trained_hash) {
      throw StateError(text("rank ", number, " trains other parameters than this one"),
                       {.hint = "Freeze the same ones (requires_grad) on all ranks."});
    }
  }
}

double BackwardHandshake::total_weight() const {
  if (group_.size() == 1) return own_.weight.value_or(1);
  const auto* values = headers_.const_data_ptr<double>();
  double total = 0;
  for (int rank = 0; rank < group_.size(); ++rank) total += values[fields * rank + 2];
  return total;
}

}  // namespace trestle::sharding
