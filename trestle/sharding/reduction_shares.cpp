// What the ranks tell each other at the beginning of a reduced backward, and each one's share of the average.
#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/gradient_reducer.h"

namespace trestle::sharding {

// What ranks say at the beginning of a pass, so that one that does something else is found by what it says and not by a
// wrong number: which backward this is, and its weight.
void GradientReducer::begin_header() {
  if (ranks_.all.size() == 1) return;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  pass_->header = at::empty({3}, options);
  auto* values = pass_->header.mutable_data_ptr<double>();
  values[0] = static_cast<double>(place());
  values[1] = weight_ ? 1 : 0;
  values[2] = weight_.value_or(1);
  pass_->headers = at::empty({ranks_.all.size() * 3}, options);
  pass_->header_work = ranks_.all.all_gather(pass_->headers, pass_->header);
}

void GradientReducer::check_headers() {
  if (ranks_.all.size() == 1) return;
  pass_->header_work.wait();
  const auto* values = pass_->headers.const_data_ptr<double>();
  for (int rank = 0; rank < ranks_.all.size(); ++rank) {
    const double* theirs = values + 3 * static_cast<std::ptrdiff_t>(rank);
    const int number = ranks_.all.ranks().at(static_cast<std::size_t>(rank));
    if (theirs[0] != static_cast<double>(place())) {
      throw StateError(
          text("rank ", number, " is in its backward number ", theirs[0], ", this one in number ",
               place()),
          {.hint =
               "All ranks make the same number of backwards, inside and outside of no_sync()."});
    }
    if ((theirs[1] != 0) != weight_.has_value()) {
      throw StateError(
          text("rank ", number,
               theirs[1] != 0 ? " gives its backward a weight" : " gives its backward no weight",
               ", this one ", weight_ ? "does" : "does not"),
          {.hint = "Give backward() a weight on all ranks or on none."});
    }
  }
}

// Which pass this is. Who runs stages by other means, as a profile does, makes backwards that others do not.
std::int64_t GradientReducer::place() const { return sums_ ? steps_ : backwards_; }

double GradientReducer::share() {
  if (pass_->share) return *pass_->share;
  double share = sums_ ? 1.0 : 1.0 / ranks_.all.size();
  if (weight_) {
    double total = *weight_;
    if (ranks_.all.size() > 1) {
      check_headers();
      total = 0;
      const auto* values = pass_->headers.const_data_ptr<double>();
      for (int rank = 0; rank < ranks_.all.size(); ++rank) total += values[3 * rank + 2];
    }
    share = total == 0 ? 0 : *weight_ / total;
  }
  pass_->share = share;
  return share;
}

double GradientReducer::later_divisor(std::size_t group) const {
  if (groups_[group]->reduce_dtype() != at::kHalf) return 1;
  double divisor = 1;  // a power of two next to the root of the ranks: dividing by it is exact
  while (4 * divisor * divisor <= ranks_.all.size()) divisor *= 2;
  return divisor;
}

}  // namespace trestle::sharding
