#include "trestle/sync_batch_norm/sync_batch_norm_function.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <optional>
#include <tuple>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"
#include "trestle/device/torch_versions.h"

namespace trestle::sync_batch_norm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_low(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

// The dtype in which x is normalised, and of statistics for libtorch's kernels.
at::ScalarType wide(const at::Tensor& x) { return is_low(x) ? at::kFloat : x.scalar_type(); }

std::int64_t values_a_channel(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.numel() / x.size(1);
}

// Reshapes [channels] to compute with x.
at::Tensor beside(const at::Tensor& each_channel, const at::Tensor& x) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[1] = x.size(1);
  return each_channel.to(wide(x)).view(sizes);
}

struct Statistics {
  at::Tensor mean, variance;  // [channels], of all ranks; the variance is the biased one
  at::Tensor count;           // values per channel, on the device: no wait
};

// This rank's mean, squared deviations and count, in one tensor: [2 * channels + 1].
at::Tensor own_statistics(const at::Tensor& x) {
  const std::int64_t channels = x.size(1), count = values_a_channel(x);
  const auto exact = x.options().dtype(at::kDouble);
  if (count == 0) return at::zeros({2 * channels + 1}, exact);
  // Zeros as running statistics make the kernel compute in float32 where x is narrower. Momentum 0
  // leaves them unchanged.
  at::Tensor still;
  if (is_low(x)) still = at::zeros({channels}, exact.dtype(at::kFloat));
  const auto [mean, variance] = at::batch_norm_update_stats(x, still, still, /*momentum=*/0);
  const auto n = static_cast<double>(count);
  return at::cat({mean.to(at::kDouble), variance.to(at::kDouble).mul(n), at::full({1}, n, exact)});
}

Statistics statistics_of_all(const at::Tensor& x, const comm::Group& group) {
  const std::int64_t channels = x.size(1);
  const at::Tensor own = own_statistics(x);
  const at::Tensor all = at::empty({group.size(), own.numel()}, own.options());
  comm::with_purpose(
      [&] {
        return text("while the ranks gathered the statistics of a batch norm of ", channels,
                    " channels");
      },
      [&] { group.all_gather(all, own).wait(); });
  const at::Tensor counts = all.slice(1, 2 * channels);  // [ranks, 1]
  const at::Tensor count = counts.sum();
  // Two values on this rank are enough. This avoids waiting for a GPU.
  if (values_a_channel(x) < 2 && count.item<double>() < 2) {
    throw UsageError(text("batch norm in training needs more than one value per channel; the ",
                          group.size(), " rank(s) have ", count.item<double>(), " together"),
                     {.hint = "Give the ranks larger batches, or call eval()."});
  }
  const at::Tensor means = all.slice(1, 0, channels);
  const at::Tensor mean = means.mul(counts).sum(0).div(count);
  const at::Tensor squares =
      all.slice(1, channels, 2 * channels).add(means.sub(mean).square().mul(counts)).sum(0);
  return {mean, squares.div(count), count};
}

// Does not bump the version, as torch's own batch norm: autograd may have saved them.
void move(const RunningStatistics& running, const Statistics& batch) {
  const auto toward = [&](const at::Tensor& statistic, const at::Tensor& value) {
    if (!statistic.defined()) return;
    at::Tensor data = statistic.variable_data();
    data.mul_(1 - running.momentum).add_(value.to(data.scalar_type()), running.momentum);
  };
  toward(running.mean, batch.mean);
  toward(running.variance, batch.variance.mul(batch.count.div(batch.count.sub(1))));
}

// Normalises with given statistics: libtorch's kernel for evaluation, in one pass.
at::Tensor normalise(const at::Tensor& x, at::Tensor weight, at::Tensor bias,
                     const at::Tensor& mean, const at::Tensor& variance, double eps) {
  if (x.numel() == 0) return at::empty_like(x);
  if (is_low(x)) {
    if (weight.defined()) weight = weight.to(at::kFloat);
    if (bias.defined()) bias = bias.to(at::kFloat);
  }
  return std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance, /*training=*/false,
                                           /*momentum=*/0, eps));
}

// The gradient of the input waits for other ranks. It is not made of autograd's operators, so it
// has no gradient of its own.
struct NoSecondDerivative : torch::autograd::Node {
  variable_list apply(variable_list&&) override {
    throw UsageError("SyncBatchNorm cannot be differentiated twice",
                     {.hint = "Use BatchNorm, which normalises over each rank's own samples."});
  }
};

struct HeldGroup : torch::CustomClassHolder {
  comm::Group group;
};

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  // weight and bias are nullopt or defined: autograd counts the tensors that exist.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& maybe_weight,
                            const std::optional<at::Tensor>& maybe_bias,
                            const RunningStatistics& running, double eps,
                            const comm::Group& group) {
    const at::Tensor weight = maybe_weight.value_or(at::Tensor());
    const at::Tensor bias = maybe_bias.value_or(at::Tensor());
    const Statistics batch = statistics_of_all(x, group);
    move(running, batch);
    const at::Tensor mean = batch.mean.to(wide(x)), variance = batch.variance.to(wide(x));
    context->save_for_backward({x, weight, mean, variance, batch.count});
    context->saved_data["eps"] = eps;
    context->saved_data["bias"] = bias.defined();
    auto held = c10::make_intrusive<HeldGroup>();
    held->group = group;
    context->saved_data["group"] = c10::IValue::make_capsule(std::move(held));
    return normalise(x, weight, bias, mean, variance, eps);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const bool differentiates_again = at::GradMode::is_enabled();
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["group"].toCapsule();
    const comm::Group& group = static_cast<HeldGroup&>(*capsule).group;
    variable_list result(6);
    {
      const at::NoGradGuard no_grad;
      auto [sum, product] = sums(gradients[0], saved, context->saved_data["eps"].toDouble());
      if (context->needs_input_grad(0))
        result[0] = input_gradient(gradients[0], saved, context->saved_data["eps"].toDouble(), sum,
                                   product, group);
      const bool has_weight = saved[1].defined(), has_bias = context->saved_data["bias"].toBool();
      if (has_weight && context->needs_input_grad(1))
        result[1] = product.to(saved[1].scalar_type());
      if (has_bias && context->needs_input_grad(has_weight ? 2 : 1)) result[2] = sum;
    }
    if (differentiates_again) refuse_second(result, {gradients[0], saved[0], saved[1]});
    return result;
  }

 private:
  // Sums over this rank's samples: of the gradient, and of the gradient times the normalised input.
  static std::pair<at::Tensor, at::Tensor> sums(const at::Tensor& gradient,
                                                const variable_list& saved, double eps) {
    const at::Tensor &x = saved[0], &mean = saved[2], &variance = saved[3];
    if (x.numel() == 0) return {at::zeros_like(mean), at::zeros_like(mean)};
    const auto [none, product, sum] = at::native_batch_norm_backward(
        gradient, x, /*weight=*/{}, mean, variance, /*save_mean=*/{}, /*save_invstd=*/{},
        /*train=*/false, eps, {false, true, true});
    return {sum, product};
  }

  static at::Tensor input_gradient(const at::Tensor& gradient, const variable_list& saved,
                                   double eps, const at::Tensor& sum, const at::Tensor& product,
                                   const comm::Group& group) {
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2];
    at::Tensor all = at::cat({sum.to(at::kDouble), product.to(at::kDouble)});
    // Also without samples: all ranks must call it.
    comm::with_purpose(
        [&] {
          return text("while the ranks summed the gradients of a batch norm of ", x.size(1),
                      " channels");
        },
        [&] { group.all_reduce(all).wait(); });
    if (x.numel() == 0) return at::zeros_like(x);
    const auto averages = all.div(saved[4]).chunk(2);
    const at::Tensor scale = saved[3].to(at::kDouble).add(eps).rsqrt();
    const at::Tensor factor = weight.defined() ? scale.mul(weight.to(at::kDouble)) : scale;
    const at::Tensor deviation = x.to(wide(x)).sub(beside(mean, x));
    at::Tensor result = at::addcmul(beside(averages[0].mul(factor).neg(), x), gradient.to(wide(x)),
                                    beside(factor, x));
    result.addcmul_(deviation, beside(averages[1].mul(factor).mul(scale).neg(), x));
    return result.to(x.scalar_type());
  }

  static void refuse_second(variable_list& result, const variable_list& from) {
    auto node = make_node<NoSecondDerivative>();
    node->set_next_edges(torch::autograd::collect_next_edges(from));
    for (const at::Tensor& gradient : result) {
      if (gradient.defined()) torch::autograd::set_history(gradient, node);
    }
  }
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const RunningStatistics& running, double eps,
                           const comm::Group& group) {
  const auto if_there = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, if_there(weight), if_there(bias), running, eps, group);
}

}  // namespace trestle::sync_batch_norm
