#include "trestle/sharding/engine/forward_keys.h"

#include <ATen/core/grad_mode.h>

#include <numeric>

#include "trestle/base/error.h"
#include "trestle/nn/checkpointing.h"

namespace trestle::sharding {
namespace {

std::int64_t examples_of(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs)
    if (input.defined() && input.dim() > 0) return input.size(0);
  return 0;
}

}  // namespace

nn::RunKey ForwardKeys::next(const GradientReducer& reducer,
                             const std::vector<at::Tensor>& inputs) {
  const int micro_batches = options_.reproducible.micro_batches;
  const std::int64_t steps = reducer.stats().steps;
  const std::int64_t current = micro_batches > 0 ? reducer.stats().backwards : steps;
  if (counted_for_ != current) forwards_ = 0;
  counted_for_ = current;
  // A recomputed forward draws what its first run drew, which the recomputation remembers.
  const bool counts =
      at::GradMode::is_enabled() && nn::checkpointing() != nn::Checkpointing::Recompute;
  const std::int64_t number = counts ? forwards_++ : 0;
  const std::int64_t micro_batch =
      micro_batches > 0
          ? number * micro_batches + own_micro_batches().front() + reducer.micro_batches_done()
          : number * ranks_.size() + ranks_.rank();
  return {.seed = options_.seed,
          .step = first_step_ + steps,
          .micro_batch = micro_batch,
          .example = micro_batch * examples_of(inputs)};
}

std::vector<int> ForwardKeys::own_micro_batches() const {
  const int micro_batches = options_.reproducible.micro_batches;
  if (micro_batches == 0)
    throw UsageError("own_micro_batches() without ShardOptions::reproducible",
                     {.hint = "Set ShardOptions::reproducible."});
  std::vector<int> own(static_cast<std::size_t>(micro_batches / ranks_.size()));
  std::iota(own.begin(), own.end(), ranks_.rank() * static_cast<int>(own.size()));
  return own;
}

ShardProgress ForwardKeys::progress(const GradientReducer& reducer) const {
  const std::int64_t steps = reducer.stats().steps;
  return {.steps = first_step_ + steps, .forwards = counted_for_ == steps ? forwards_ : 0};
}

void ForwardKeys::set_progress(const ShardProgress& progress, const GradientReducer& reducer) {
  counted_for_ = reducer.stats().steps;
  first_step_ = progress.steps - counted_for_;
  forwards_ = progress.forwards;
}

}  // namespace trestle::sharding
