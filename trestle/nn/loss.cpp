#include "trestle/nn/loss.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <utility>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/token_loss.h"
#include "trestle/nn/token_targets.h"

namespace trestle::nn {

namespace {

// Under autocast scores are bf16 or fp16, and torch's CPU list would leave the loss so too. Without
// autocast a half type means a cast model, whose loss has its own type, as in torch.
at::Tensor in_float(const at::Tensor& scores) {
  const at::ScalarType type = scores.scalar_type();
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  return half && at::autocast::is_autocast_enabled(scores.device().type()) ? scores.to(at::kFloat)
                                                                           : scores;
}

double samples(const at::Tensor& target) {
  return target.dim() == 0 ? 1.0 : static_cast<double>(target.size(0));
}

void check_target(const char* loss, const at::Tensor& target) {
  if (!target.defined())
    throw UsageError(text(loss, " needs a target but got None"),
                     {.hint = "Pass the target, or use a loss of the output alone."});
}

void check_class_ids(const char* loss, const at::Tensor& output, const at::Tensor& target) {
  check_target(loss, target);
  const bool fits = output.dim() >= 2 && target.dim() == output.dim() - 1 &&
                    target.size(0) == output.size(0) &&
                    target.sizes().slice(1) == output.sizes().slice(2);
  const bool ids = target.scalar_type() == at::kLong;
  if (fits && ids) return;
  std::string hint;
  if (!ids)
    hint =
        "Convert the targets to int64, or use a loss of numbers: mean_squared_error (in a "
        "recipe 'loss' in [train]).";
  else if (target.dim() + 1 != output.dim())
    hint = text("The model gives scores for ", output.dim() > 2 ? "each pixel" : "each sample",
                ", and the targets have ", target.dim(),
                " dimensions: choose another model ('name' "
                "in [model]) or other targets.");
  throw UsageError(text(loss, " takes scores [N, C, ...] and int64 class ids [N, ...]; got [",
                        join(output.sizes(), ", "), "] and ", target.scalar_type(), " [",
                        join(target.sizes(), ", "), "]"),
                   {.hint = std::move(hint)});
}

// Sum and division instead of torch's mean: the same numbers, and 0 instead of NaN if every target
// is ignored.
at::Tensor cross_entropy_value(const CrossEntropyOptions& options, const at::Tensor& output,
                               const at::Tensor& target) {
  check_class_ids("cross_entropy", output, target);
  const at::Tensor sum = at::cross_entropy_loss(in_float(output), target, {}, at::Reduction::Sum,
                                                options.ignore_index, options.label_smoothing);
  const at::Tensor count = target.ne(options.ignore_index).sum().clamp_min(1);
  return sum / count;
}

at::Tensor token_cross_entropy_value(const CrossEntropyOptions& options, const at::Tensor& output,
                                     const at::Tensor& target) {
  check_token_shapes("token_cross_entropy", output.sizes(), target);
  check_token_ids("token_cross_entropy", target, output.size(2), options.ignore_index);
  return cross_entropy_value(options, output.flatten(0, 1), target.flatten());
}

// dice = (2 * intersection + eps) / (sums + eps) for each class over the whole batch; mean over
// all classes.
at::Tensor dice_value(const DiceOptions& options, const at::Tensor& output,
                      const at::Tensor& target) {
  check_class_ids("dice", output, target);
  at::Tensor probability = at::softmax(in_float(output), 1);
  at::Tensor truth = at::zeros_like(probability);
  if (options.ignores) {
    const at::Tensor counts = target.ne(ignored_target).unsqueeze(1).to(probability.scalar_type());
    probability = probability * counts;
    truth.scatter_(1, target.masked_fill(target.eq(ignored_target), 0).unsqueeze(1), counts);
  } else {
    truth.scatter_(1, target.unsqueeze(1), 1.0);
  }
  std::vector<std::int64_t> all_but_classes = {0};
  for (std::int64_t dim = 2; dim < output.dim(); ++dim) all_but_classes.push_back(dim);
  const at::Tensor intersection = (probability * truth).sum(all_but_classes);
  const at::Tensor sums = probability.sum(all_but_classes) + truth.sum(all_but_classes);
  const at::Tensor dice = (2 * intersection + options.epsilon) / (sums + options.epsilon);
  return 1 - dice.mean();
}

// With ignored targets, the weight of a micro-batch is the number of targets that count.
double counted_targets(const at::Tensor& target) {
  return static_cast<double>(target.ne(ignored_target).sum().item<std::int64_t>());
}

auto cross_entropy_and_dice_value(const DiceOptions& options) {
  return [options](const at::Tensor& output, const at::Tensor& target) {
    return cross_entropy_value({}, output, target) + dice_value(options, output, target);
  };
}

}  // namespace

void check_token_shapes(const char* name, at::IntArrayRef scores, const at::Tensor& target) {
  check_target(name, target);
  if (scores.size() == 3 && target.sizes() == scores.slice(0, 2) &&
      target.scalar_type() == at::kLong)
    return;
  throw UsageError(text(name, " takes scores [N, T, V] and int64 token ids [N, T]; got [",
                        join(scores, ", "), "] and ", target.scalar_type(), " [",
                        join(target.sizes(), ", "), "]"));
}

// On a GPU the kernel checks them, without a wait for the device.
void check_token_ids(const char* name, const at::Tensor& target, std::int64_t vocabulary,
                     std::int64_t ignored) {
  if (target.is_cuda() || target.numel() == 0) return;
  const at::Tensor on_cpu = target.to(at::kCPU).contiguous();
  const auto* const ids = on_cpu.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < on_cpu.numel(); ++i) {
    if (ids[i] == ignored || (ids[i] >= 0 && ids[i] < vocabulary)) continue;
    throw UsageError(
        text(name, ": target ", ids[i], " in row ", i / target.size(1), ", column ",
             i % target.size(1), " is out of range: the scores have ", vocabulary, " tokens"),
        {.hint = text("Prepare the text with the model's tokenizer. A target of ", ignored,
                      " does not count.")});
  }
}

Loss additive(std::string name,
              std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> value,
              std::function<double(const at::Tensor&)> weight) {
  return {std::move(name), Loss::Kind::Additive, std::move(value),
          weight ? std::move(weight) : samples};
}

Loss whole_batch(std::string name,
                 std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> value) {
  return {std::move(name), Loss::Kind::WholeBatch, std::move(value), {}};
}

Loss cross_entropy(const CrossEntropyOptions& options) {
  return additive(
      "cross_entropy",
      [options](const at::Tensor& output, const at::Tensor& target) {
        return cross_entropy_value(options, output, target);
      },
      [ignored = options.ignore_index](const at::Tensor& target) {
        return static_cast<double>(target.ne(ignored).sum().item<std::int64_t>());
      });
}

Loss token_cross_entropy(const CrossEntropyOptions& options) {
  return additive(
      "token_cross_entropy",
      [options](const at::Tensor& output, const at::Tensor& target) {
        return token_cross_entropy_value(options, output, target);
      },
      [ignored = options.ignore_index](const at::Tensor& target) {
        return static_cast<double>(target.ne(ignored).sum().item<std::int64_t>());
      });
}

namespace {

std::string hint_for_shapes(const at::Tensor& output, const at::Tensor& target) {
  if (target.scalar_type() == at::kLong && target.dim() + 1 == output.dim())
    return "For class ids use cross_entropy (in a recipe 'loss' in [train]).";
  if (output.dim() == 2 && target.dim() == 2)
    return text("Give the model ", target.size(1),
                " outputs (in a recipe 'classes' in [model]), one for each number of a target.");
  if (output.dim() == target.dim() + 1 && output.size(-1) == 1)
    return "Give the targets a last dimension of 1: target.unsqueeze(-1).";
  return "";
}

}  // namespace

Loss mean_squared_error() {
  return additive(
      "mean_squared_error",
      [](const at::Tensor& output, const at::Tensor& target) {
        check_target("mean_squared_error", target);
        // torch would broadcast with a warning, which is hardly ever intended.
        if (output.sizes() != target.sizes()) {
          throw UsageError(
              text("mean_squared_error takes two tensors of one shape; got [",
                   join(output.sizes(), ", "), "] and [", join(target.sizes(), ", "), "]"),
              {.hint = hint_for_shapes(output, target)});
        }
        return at::mse_loss(in_float(output), target);
      },
      [](const at::Tensor& target) { return static_cast<double>(target.numel()); });
}

Loss dice(const DiceOptions& options) {
  return whole_batch("dice", [options](const at::Tensor& output, const at::Tensor& target) {
    return dice_value(options, output, target);
  });
}

Loss dice_per_micro_batch(const DiceOptions& options) {
  return additive(
      "dice_per_micro_batch",
      [options](const at::Tensor& output, const at::Tensor& target) {
        return dice_value(options, output, target);
      },
      options.ignores ? counted_targets : samples);
}

Loss cross_entropy_and_dice(const DiceOptions& options) {
  return whole_batch("cross_entropy+dice", cross_entropy_and_dice_value(options));
}

Loss cross_entropy_and_dice_per_micro_batch(const DiceOptions& options) {
  return additive("cross_entropy+dice_per_micro_batch", cross_entropy_and_dice_value(options),
                  options.ignores ? counted_targets : samples);
}

void refuse_whole_batch(const Loss& loss, std::string_view schedule) {
  throw UsageError(
      text("loss '", loss.name, "' needs the outputs of the whole batch, but schedule '", schedule,
           "' starts a backward before the last forward"),
      {.hint = "Use schedule 'gpipe' (or 'looped_bfs', with several stages on a rank), or a loss "
               "that is defined for each micro-batch (for dice: "
               "'dice_per_micro_batch', another loss)."});
}

namespace {

std::vector<Loss> known_losses(const DiceOptions& options = {}) {
  return {cross_entropy(),
          token_cross_entropy(),
          mean_squared_error(),
          dice(options),
          dice_per_micro_batch(options),
          cross_entropy_and_dice(options),
          cross_entropy_and_dice_per_micro_batch(options)};
}

}  // namespace

Loss make_loss(std::string_view name, const DiceOptions& options) {
  return choose("loss", name, known_losses(options));
}

std::vector<std::string> loss_names() {
  std::vector<std::string> names;
  for (const Loss& loss : known_losses()) names.push_back(loss.name);
  return names;
}

}  // namespace trestle::nn
