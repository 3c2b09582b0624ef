#include "trestle/train/loss_memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/token_loss.h"

namespace trestle::train {
namespace {

constexpr double outputs_alone = 1;
constexpr std::int64_t longest_side = 32;

// Elements of the model's output for one example.
double output_elements(const plan::LayerProfile& profile, std::int64_t examples) {
  Bytes bytes = 0;
  for (const plan::ValueCost& value : profile.values)
    if (std::ranges::find(value.to, static_cast<int>(profile.layers.size())) != value.to.end())
      bytes += value.bytes;
  return static_cast<double>(bytes) / sizeof(float) / static_cast<double>(examples);
}

// Outputs for each number of the target; below 1 if there are fewer.
double outputs_for_target(const plan::LayerProfile& profile, std::int64_t examples,
                          const at::Tensor& target) {
  return std::round(output_elements(profile, examples) / static_cast<double>(target.numel()));
}

// [1, classes, ...] for a target of classes, or [1, ..., classes] for tokens; otherwise of the
// target's own sizes.
std::vector<std::int64_t> output_sizes(const nn::Loss& loss, const at::Tensor& target,
                                       std::int64_t classes) {
  const bool last = loss.name == nn::token_cross_entropy().name;
  std::vector<std::int64_t> sizes = {1};
  if (!target.is_floating_point() && !last) sizes.push_back(classes);
  sizes.insert(sizes.end(), target.sizes().begin(), target.sizes().end());
  if (!target.is_floating_point() && last) sizes.push_back(classes);
  return sizes;
}

double measure_loss(const nn::Loss& loss, const at::Tensor& output, const at::Tensor& target,
                    at::Device device) {
  const UnlimitedBudgets unlimited({device});
  const auto targets = target.to(device);
  const auto kept = static_cast<Bytes>(output.nbytes());
  Bytes need = 0;
  for (int round = 0; round < 2; ++round) {  // the first one may fill caches
    const Bytes before = memory_usage(device).current;
    reset_peak_memory(device);
    nn::GradientSink sink(1);
    at::Tensor whole = sink.begin(0, output.to(device));
    const at::Tensor value = loss.value(whole, targets);
    // A stage has no more use for its outputs then. The loss may have saved them.
    if (loss.kind != nn::Loss::Kind::WholeBatch) whole.reset();
    value.backward();
    device::synchronize(device);
    need = memory_usage(device).peak - before - kept;
  }
  return static_cast<double>(need + static_cast<Bytes>(targets.nbytes())) /
         static_cast<double>(kept);
}

}  // namespace

double loss_memory(const nn::Loss& loss, const plan::LayerProfile& profile, std::int64_t examples,
                   at::Tensor target, at::Device device) {
  if (device.is_cpu() || !target.defined() || target.numel() == 0) return outputs_alone;
  const double classes = outputs_for_target(profile, examples, target);
  if (classes < 1) return outputs_alone;
  for (std::int64_t d = 0; d < target.dim(); ++d)
    target = target.narrow(d, 0, std::min(target.size(d), longest_side));
  const at::AutoGradMode grad(true);
  try {
    const at::Tensor output =
        at::rand(output_sizes(loss, target, static_cast<std::int64_t>(classes)),
                 at::detail::createCPUGenerator());
    return std::max(outputs_alone, measure_loss(loss, output, target.unsqueeze(0), device));
  } catch (const std::exception&) {
    return outputs_alone;  // an output of other sizes; a training tells whether it fits
  }
}

double loss_seconds(const nn::Loss& loss, const plan::LayerProfile& profile, std::int64_t examples,
                    at::Tensor target, at::Device device) {
  constexpr double most_outputs = 4e6;  // that are made for the measurement
  constexpr int rounds = 3;             // the first one warms up
  if (!target.defined() || target.numel() == 0) return 0;
  const double classes = outputs_for_target(profile, examples, target);
  if (classes < 1) return 0;
  const double all = classes * static_cast<double>(target.numel() * examples);
  if (target.dim() > 0) {  // fewer rows or tokens of a large example
    const double row = classes * static_cast<double>(target.numel() / target.size(0));
    target = target.narrow(
        0, 0,
        std::clamp<std::int64_t>(static_cast<std::int64_t>(most_outputs / row), 1, target.size(0)));
  }
  const double one = classes * static_cast<double>(target.numel());
  const std::int64_t count = std::clamp<std::int64_t>(static_cast<std::int64_t>(most_outputs / one),
                                                      1, std::max<std::int64_t>(examples, 1));
  std::vector<std::int64_t> sizes = output_sizes(loss, target, static_cast<std::int64_t>(classes));
  sizes[0] = count;
  std::vector<std::int64_t> repeats(static_cast<std::size_t>(target.dim()) + 1, 1);
  repeats[0] = count;
  const at::AutoGradMode grad(true);
  try {
    const UnlimitedBudgets unlimited({device});
    const at::Tensor output = at::ones(sizes).to(device);
    const at::Tensor targets = target.unsqueeze(0).repeat(repeats).to(device);
    double best = 0;
    for (int round = 0; round < rounds; ++round) {
      nn::GradientSink sink(1);
      const at::Tensor whole = sink.begin(0, output);
      device::synchronize(device);
      const Stopwatch watch;
      loss.value(whole, targets).backward();
      device::synchronize(device);
      if (round > 0) best = round == 1 ? watch.seconds() : std::min(best, watch.seconds());
    }
    return best * all / (one * static_cast<double>(count));
  } catch (const std::exception&) {
    return 0;  // an output of other sizes
  }
}

}  // namespace trestle::train
