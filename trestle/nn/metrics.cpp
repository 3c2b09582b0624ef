#include "trestle/nn/metrics.h"

#include <ATen/ATen.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/loss.h"

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

Tally dice_tally(const at::Tensor& output, const at::Tensor& target, double epsilon) {
  if (output.dim() != 4 || output.size(1) < 2 || target.dim() != 3 ||
      target.size(0) != output.size(0) || target.sizes().slice(1) != output.sizes().slice(2)) {
    throw UsageError(text("dice takes scores [N, C >= 2, H, W] and class ids [N, H, W]; got [",
                          join(output.sizes(), ", "), "] and [", join(target.sizes(), ", "), "]"));
  }
  const at::Tensor guess = output.argmax(1).masked_fill_(target.eq(ignored_target), ignored_target);
  at::Tensor dice = at::zeros({output.size(0)}, at::kDouble);
  for (std::int64_t channel = 1; channel < output.size(1); ++channel) {
    const at::Tensor guessed = guess.eq(channel);
    const at::Tensor truth = target.eq(channel);
    // Pixel counts, so they are exact in double; moved off the device as three numbers an image.
    const at::Tensor both = guessed.logical_and(truth).sum({1, 2}).cpu().to(at::kDouble);
    const at::Tensor sums = (guessed.sum({1, 2}) + truth.sum({1, 2})).cpu().to(at::kDouble);
    dice += (2 * both + epsilon) / (sums + epsilon);
  }
  const double channels = static_cast<double>(output.size(1) - 1);
  const at::Tensor known = target.ne(ignored_target).flatten(1).any(1).cpu().to(at::kDouble);
  return {(dice * known).sum().item<double>() / channels, known.sum().item<double>()};
}

}  // namespace trestle::nn
