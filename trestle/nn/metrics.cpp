#include "trestle/nn/metrics.h"

#include <ATen/ATen.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/token_loss.h"

namespace trestle::nn {

Tally accuracy_tally(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor guess = output.argmax(1);
  if (guess.sizes() != target.sizes()) {
    throw UsageError(text("accuracy takes scores [N, C, ...] and class ids [N, ...]; got [",
                          join(output.sizes(), ", "), "] and [", join(target.sizes(), ", "), "]"));
  }
  return {static_cast<double>(guess.eq(target).sum().item<std::int64_t>()),
          static_cast<double>(target.ne(ignored_target).sum().item<std::int64_t>())};
}

namespace {

void check_tokens(const char* metric, const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() == 3 && target.dim() == 2 && target.sizes() == output.sizes().slice(0, 2))
    return;
  throw UsageError(text(metric, " takes scores [N, T, V] and token ids [N, T]; got [",
                        join(output.sizes(), ", "), "] and [", join(target.sizes(), ", "), "]"));
}

double counted(const at::Tensor& target) {
  return static_cast<double>(target.ne(ignored_target).sum().item<std::int64_t>());
}

}  // namespace

Tally log_probability_tally(const at::Tensor& output, const at::Tensor& target) {
  check_tokens("log_probability", output, target);
  const at::Tensor scores = output.scalar_type() == at::kDouble ? output : output.to(at::kFloat);
  const at::Tensor sum =
      at::cross_entropy_loss(scores.flatten(0, 1), target.flatten(), {}, at::Reduction::Sum);
  return {-sum.item<double>(), counted(target)};
}

Tally token_accuracy_tally(const at::Tensor& output, const at::Tensor& target) {
  check_tokens("token_accuracy", output, target);
  const at::Tensor right = output.argmax(-1).eq(target);
  return {static_cast<double>(right.sum().item<std::int64_t>()), counted(target)};
}

namespace {

void check_masks(const at::Tensor& output, const at::Tensor& target) {
  if ((output.dim() != 4 && output.dim() != 5) || output.size(1) < 2 ||
      target.dim() != output.dim() - 1 || target.size(0) != output.size(0) ||
      target.sizes().slice(1) != output.sizes().slice(2)) {
    throw UsageError(
        text("dice takes scores [N, C >= 2, H, W] and class ids [N, H, W], or those "
             "of volumes, [N, C >= 2, D, H, W] and [N, D, H, W]; got [",
             join(output.sizes(), ", "), "] and [", join(target.sizes(), ", "), "]"));
  }
}

}  // namespace

Tally dice_tally(const at::Tensor& output, const at::Tensor& target, double epsilon) {
  check_masks(output, target);
  const at::Tensor guess = output.argmax(1).masked_fill_(target.eq(ignored_target), ignored_target);
  at::Tensor dice = at::zeros({output.size(0)}, at::kDouble);
  for (std::int64_t channel = 1; channel < output.size(1); ++channel) {
    const at::Tensor guessed = guess.eq(channel);
    const at::Tensor truth = target.eq(channel);
    // Pixel counts, so they are exact in double; moved off the device as three numbers an image.
    const at::Tensor both = guessed.logical_and(truth).flatten(1).sum(1).cpu().to(at::kDouble);
    const at::Tensor sums =
        (guessed.flatten(1).sum(1) + truth.flatten(1).sum(1)).cpu().to(at::kDouble);
    dice += (2 * both + epsilon) / (sums + epsilon);
  }
  const double channels = static_cast<double>(output.size(1) - 1);
  const at::Tensor known = target.ne(ignored_target).flatten(1).any(1).cpu().to(at::kDouble);
  return {(dice * known).sum().item<double>() / channels, known.sum().item<double>()};
}

Tally voxel_dice_tally(const at::Tensor& output, const at::Tensor& target) {
  check_masks(output, target);
  const at::Tensor counts = target.ne(ignored_target);
  const at::Tensor guess = output.argmax(1);
  const at::Tensor guessed = guess.gt(0).logical_and(counts), truth = target.gt(0);
  const at::Tensor both = guess.eq(target).logical_and(truth);
  return {
      2 * static_cast<double>(both.sum().item<std::int64_t>()),
      static_cast<double>(guessed.sum().item<std::int64_t>() + truth.sum().item<std::int64_t>())};
}

}  // namespace trestle::nn
