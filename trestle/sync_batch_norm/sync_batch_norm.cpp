#include "trestle/sync_batch_norm/sync_batch_norm.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <ostream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sync_batch_norm/sync_batch_norm_function.h"

namespace trestle::sync_batch_norm {
namespace {

std::string momentum_text(const std::optional<double>& momentum) {
  return momentum ? text(*momentum) : "none";
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group)
    : options(options), group_(std::move(group)) {
  if (!group_.valid())
    throw UsageError("SyncBatchNorm needs a group that contains this rank",
                     {.hint = "World::group() contains all ranks."});
  reset();
}

void SyncBatchNormImpl::reset() {
  const auto each_channel = [&](bool there, double value) {
    return there ? at::full({options.num_features()}, value, at::kFloat) : at::Tensor();
  };
  weight = register_parameter("weight", each_channel(options.affine(), 1), options.affine());
  bias = register_parameter("bias", each_channel(options.affine(), 0), options.affine());
  const bool tracks = options.track_running_stats();
  running_mean = register_buffer("running_mean", each_channel(tracks, 0));
  running_var = register_buffer("running_var", each_channel(tracks, 1));
  num_batches_tracked =
      register_buffer("num_batches_tracked", tracks ? at::zeros({}, at::kLong) : at::Tensor());
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!running_mean.defined()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "trestle::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=" << momentum_text(options.momentum())
         << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ", ranks=" << group_.size()
         << ")";
}

void SyncBatchNormImpl::check(const at::Tensor& input) const {
  const bool fits =
      input.dim() >= 2 && input.size(1) > 0 && input.size(1) == options.num_features();
  if (fits) return;
  throw UsageError(text("SyncBatchNorm of ", options.num_features(), " channels was given [",
                        join(input.sizes(), ", "), "]"),
                   {.hint = "It takes [samples, channels, ...]."});
}

// Counts the batch. Returns the momentum of the running statistics.
double SyncBatchNormImpl::next_momentum() {
  if (!num_batches_tracked.defined()) return options.momentum().value_or(0);
  num_batches_tracked += 1;
  if (options.momentum()) return *options.momentum();
  return 1 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  const bool by_batch = is_training() || !running_mean.defined();
  const bool has_statistics = !by_batch || input.numel() / input.size(1) > 1;
  if (has_statistics && (!is_training() || group_.size() == 1)) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, by_batch,
                          is_training() ? next_momentum() : 0, options.eps(),
                          at::globalContext().userEnabledCuDNN());
  }
  if (!is_training())
    throw UsageError(
        text("batch norm without running statistics needs more than one value per "
             "channel; [",
             join(input.sizes(), ", "), "] has fewer"));
  if (!ranks_agree_) {  // once: it does not change
    check_batch_norm_ranks(
        group_, input,
        text("eps ", options.eps(), ", momentum ", momentum_text(options.momentum())));
    ranks_agree_ = true;
  }
  return sync_batch_norm(
      input, weight, bias,
      {.mean = running_mean, .variance = running_var, .momentum = next_momentum()}, options.eps(),
      group_);
}

}  // namespace trestle::sync_batch_norm
