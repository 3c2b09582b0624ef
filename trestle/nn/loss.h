#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

// A loss is a contract: does it add up over micro-batches?
namespace trestle::nn {

// An additive loss is a weighted mean over samples, pixels or tokens: the loss of a batch is the
// mean of its micro-batches' losses, weighted by `weight`. Every schedule can run it. A whole-batch
// loss (dice reduced over the batch, contrastive losses) needs all outputs first, so only schedules
// that run all forwards first can run it.
struct Loss {
  enum class Kind { Additive, WholeBatch };

  std::string name;
  Kind kind = Kind::Additive;
  // (output, target) -> 0-dim tensor. For an additive loss the mean over what `weight` counts.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> value;
  // target -> how much this piece weighs: its samples, or its tokens that count. Only read for
  // additive losses, and not where there is no target (None): a piece then weighs its samples.
  std::function<double(const at::Tensor& target)> weight;
};

// Any function of the user's. `additive(f)` promises that f is a mean over samples (or what
// `weight` counts).
Loss additive(std::string name,
              std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> value,
              std::function<double(const at::Tensor&)> weight = {});
Loss whole_batch(std::string name,
                 std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> value);

// What stands in a target for "counts neither in a loss nor in a metric": torch's own number.
inline constexpr std::int64_t ignored_target = -100;

struct CrossEntropyOptions {
  std::int64_t ignore_index = ignored_target;
  double label_smoothing = 0;
};
// Mean cross-entropy of logits [N, C, ...] and class ids int64 [N, ...]. Additive; weighs the
// targets that are not ignored. A piece whose targets are all ignored has loss 0 and weight 0
// (torch's mean would be NaN).
//
// This and the losses below compute in fp32 where autocast left the scores in bf16 or fp16.
Loss cross_entropy(const CrossEntropyOptions& options = {});

// Mean squared error over all elements. Additive; weighs the target's elements.
Loss mean_squared_error();

struct DiceOptions {
  double epsilon = 1e-6;
  // Whether targets may be ignored_target: pixels that are left out of all sums. Costs a pass over
  // the scores, so it is asked for.
  bool ignores = false;
};
// 1 - dice of soft-max(logits [N, C, H, W]) against one-hot class ids [N, H, W], all classes,
// reduced over the batch first. Whole batch.
Loss dice(const DiceOptions& options = {});

// The same, one micro-batch at a time, averaged: a different loss, for schedules that cannot wait
// for the whole batch.
Loss dice_per_micro_batch(const DiceOptions& options = {});

// Cross-entropy + dice, as the torchgpipe U-Net example trains. Whole batch because dice is; the
// second is additive.
Loss cross_entropy_and_dice(const DiceOptions& options = {});
Loss cross_entropy_and_dice_per_micro_batch(const DiceOptions& options = {});

// Throws the UsageError for a whole-batch loss under a schedule that starts a backward before the
// last forward, with the ways out.
[[noreturn]] void refuse_whole_batch(const Loss& loss, std::string_view schedule);

// By name, for recipes: "cross_entropy", "cross_entropy+dice", "mean_squared_error", ... Throws
// UsageError, with the nearest name.
Loss make_loss(std::string_view name, const DiceOptions& options = {});

// The names that make_loss() knows.
std::vector<std::string> loss_names();

}  // namespace trestle::nn
