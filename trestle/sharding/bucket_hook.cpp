// Buckets that are averaged by somebody else's function.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/gradient_reducer.h"

namespace trestle::sharding {
namespace {

// The gaps between gradients, which nobody else writes to.
void zero_gaps(const at::Tensor& flat, const FlatLayout& layout, std::size_t count) {
  std::int64_t end = 0;
  const auto zero_until = [&](std::int64_t begin) {
    if (begin > end) flat.narrow(0, end, begin - end).zero_();
  };
  for (std::size_t i = 0; i < count; ++i) {
    zero_until(layout.offset(i));
    end = layout.offset(i) + layout.count(i);
  }
  zero_until(flat.numel());
}

}  // namespace

void GradientReducer::begin_hook(std::size_t group) {
  const at::NoGradGuard no_grad;
  FlatParameterGroup& flat = *groups_[group];
  zero_gaps(flat.gradients(), flat.layout(), flat.size());
  GradientBucket bucket{.index = static_cast<int>(pass_->next),
                        .is_last = pass_->next + 1 == trained_.size(),
                        .step = steps_,
                        .flat = flat.gradients(),
                        .gradients = {},
                        .names = {},
                        .group = ranks_.all};
  for (std::size_t i = 0; i < flat.size(); ++i) {
    bucket.gradients.push_back(flat.gradient_view(i));
    bucket.names.push_back(flat.name(i));
  }
  pass_->groups[group].entry = recorder_.begin(ShardEvent::What::Reduce, static_cast<int>(group));
  run_hook(bucket.index, [&] { pass_->groups[group].hooked = hook_(bucket); });
}

void GradientReducer::end_hooks() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    Reduction& reduction = pass_->groups[trained_[i]];
    if (reduction.hooked) run_hook(static_cast<int>(i), reduction.hooked);
    reduction.entry.end();
  }
}

// The other ranks, which would wait for what it has not sent, are told why.
void GradientReducer::run_hook(int bucket, const std::function<void()>& call) const {
  try {
    call();
  } catch (const std::exception& error) {
    ranks_.all.fail(
        text("communication hook '", options_.hook.name, "', bucket ", bucket, ": ", error.what()));
    throw;
  }
}

// A hook takes the plain mean over ranks.
double GradientReducer::own_factor(std::size_t group) {
  if (!hook_) return share() * post_divide_factor(group);
  return weight_ || sums_ ? share() * ranks_.all.size() : 1;
}

}  // namespace trestle::sharding
