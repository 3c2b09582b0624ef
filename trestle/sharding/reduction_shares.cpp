// Each rank's share of the average.
#include "trestle/sharding/gradient_reducer.h"

namespace trestle::sharding {

// Which pass this is. Who runs stages by other means, as a profile does, makes backwards that others do not.
std::int64_t GradientReducer::place() const { return sums_ ? steps_ : backwards_; }

// Pieces of a batch, of which each rank has as many, are fixed, whatever the number of ranks.
int GradientReducer::averaged() const {
  return pieces_ ? options_.reproducible.pieces : ranks_.all.size();
}

double GradientReducer::share() {
  if (pass_->share) return *pass_->share;
  double share = sums_ ? 1.0 : 1.0 / averaged();
  if (weight_) {
    pass_->header.check();
    const double total = pass_->header.total_weight();
    share = total == 0 ? 0 : *weight_ / total;
  }
  pass_->share = share;
  return share;
}

at::Tensor GradientReducer::weigh(const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  prepare_for_backward();
  if (!weight_ || !pass_->sync) return gradient;
  pass_->header.check();
  const double total = pass_->header.total_weight();
  const double factor = total == 0 ? 0 : *weight_ * ranks_.all.size() / total;
  if (factor != 1)
    for (const std::size_t g : trained_)
      for (std::size_t i = 0; i < groups_[g]->size(); ++i)
        if (!pass_->groups[g].fired[i]) groups_[g]->scale_own_gradient(i, factor);
  pass_->share = 1.0 / ranks_.all.size();
  return factor == 1 ? gradient : gradient * factor;
}

double GradientReducer::post_divide_factor(std::size_t group) const {
  if (groups_[group]->reduce_dtype() != at::kHalf || hook_) return 1;
  double divisor = 1;  // a power of two next to the root of the ranks: dividing by it is exact
  while (4 * divisor * divisor <= averaged()) divisor *= 2;
  return divisor;
}

}  // namespace trestle::sharding
