#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trestle::nn {

// A loss and whether it is additive over micro-batches. An additive loss is a weighted mean over
// samples, pixels or tokens: the loss of a batch is the mean of its micro-batches' losses, weighted
// by `weight`. Every schedule can run it. A whole-batch loss (dice reduced over the batch,
// contrastive losses) needs all outputs first, so only schedules that run all forwards first can
// run it.
struct Loss {
  enum class Kind { Additive, WholeBatch };

  std::string name;
  Kind kind = Kind::Additive;
  // (output, target) -> 0-dim tensor. For an additive loss the mean, by the count of `weight`.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> value;
  // target -> the weight of this micro-batch: its samples, or its tokens that count. Used only for
  // additive losses with a target; without a target (None) the weight is the number of samples.
  std::function<double(const at::Tensor& target)> weight;
};

// Wraps any function. `additive(f)` promises that f is a mean over samples (or over the count of
// `weight`).
Loss additive(std::string name,
              std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> value,
              std::function<double(const at::Tensor&)> weight = {});
Loss whole_batch(std::string name,
                 std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> value);

// A target value that counts neither in a loss nor in a metric: torch's own number.
inline constexpr std::int64_t ignored_target = -100;

struct CrossEntropyOptions {
  std::int64_t ignore_index = ignored_target;
  double label_smoothing = 0;
};
// Mean cross-entropy of logits [N, C, ...] and class ids int64 [N, ...]. Additive; the weight is
// the number of targets that are not ignored. If all targets are ignored, the loss is 0 and the
// weight 0 (torch's mean would be NaN).
//
// This and the losses below compute in fp32 if autocast produced scores in bf16 or fp16.
Loss cross_entropy(const CrossEntropyOptions& options = {});

// Mean squared error over all elements. Additive; the weight is the number of elements.
Loss mean_squared_error();

struct DiceOptions {
  double epsilon = 1e-6;
  // Whether targets may be ignored_target: such pixels are left out of all sums. Costs a pass over
  // the scores.
  bool ignores = false;
};
// 1 - dice of softmax(logits [N, C, ...]) against one-hot class ids [N, ...], all classes,
// reduced over the batch first. Whole batch.
Loss dice(const DiceOptions& options = {});

// The same for each micro-batch, averaged. This is a different loss, for schedules that cannot wait
// for the whole batch.
Loss dice_per_micro_batch(const DiceOptions& options = {});

// Cross-entropy + dice, as in the torchgpipe U-Net example. The first is whole-batch because dice
// is; the second is additive.
Loss cross_entropy_and_dice(const DiceOptions& options = {});
Loss cross_entropy_and_dice_per_micro_batch(const DiceOptions& options = {});

// Throws the UsageError for a whole-batch loss under a schedule that starts a backward before the
// last forward. The hint lists the alternatives.
[[noreturn]] void refuse_whole_batch(const Loss& loss, std::string_view schedule);

// The loss of a recipe's name: "cross_entropy", "cross_entropy+dice", "mean_squared_error", ...
// Throws UsageError that suggests the nearest name.
Loss make_loss(std::string_view name, const DiceOptions& options = {});

// The names that make_loss() accepts.
std::vector<std::string> loss_names();

}  // namespace trestle::nn
