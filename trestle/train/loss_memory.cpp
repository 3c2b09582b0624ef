#include "trestle/train/loss_memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/token_loss.h"
#include "trestle/plan/extrapolate.h"

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
  return static_cast<double>(bytes) / profile.output_number_bytes / static_cast<double>(examples);
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

struct Need {
  Bytes bytes = 0;
  Bytes outputs = 0;

  double ratio() const { return static_cast<double>(bytes) / static_cast<double>(outputs); }
};

at::ScalarType type_of(int number_bytes) {
  return number_bytes == 2 ? at::kBFloat16 : number_bytes == 8 ? at::kDouble : at::kFloat;
}

Need measure_loss(const nn::Loss& loss, const std::vector<std::int64_t>& sizes, int number_bytes,
                  const at::Tensor& target, at::Device device) {
  const at::Tensor output =
      at::rand(sizes, at::detail::createCPUGenerator()).to(type_of(number_bytes));
  const UnlimitedBudgets unlimited({device});
  const auto targets = target.to(device);
  Need need{.outputs = static_cast<Bytes>(output.nbytes())};
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
    need.bytes =
        memory_usage(device).peak - before - need.outputs + static_cast<Bytes>(targets.nbytes());
  }
  return need;
}

// With all `count` examples, or with those that make `most_outputs`. Nothing if the profile does
// not have the sizes of the model's outputs, or if one example has more.
std::optional<double> measure_whole(const nn::Loss& loss, const plan::LayerProfile& profile,
                                    std::int64_t examples, const at::Tensor& target,
                                    std::int64_t count, at::Device device) {
  constexpr double most_outputs = 1 << 20;
  const double of_one = output_elements(profile, examples);
  std::vector<std::int64_t> sizes = profile.output_sizes;
  if (sizes.empty() || sizes[0] < 1 || of_one < 1 || of_one > most_outputs) return std::nullopt;
  double measured = 1;
  for (const std::int64_t size : sizes) measured *= static_cast<double>(size);
  if (std::llround(measured / static_cast<double>(sizes[0])) != std::llround(of_one))
    return std::nullopt;  // measured with smaller pictures
  const auto measure = [&](std::int64_t some) {
    sizes[0] = some;
    std::vector<std::int64_t> repeats(static_cast<std::size_t>(target.dim()) + 1, 1);
    repeats[0] = some;
    return measure_loss(loss, sizes, profile.output_number_bytes,
                        target.unsqueeze(0).repeat(repeats), device);
  };
  const std::int64_t most = std::min(count, static_cast<std::int64_t>(most_outputs / of_one));
  const Need large = measure(most);
  if (most == count || most < 2) return large.ratio();
  const Need small = measure(most / 2);
  const double all = profile.output_number_bytes * of_one * static_cast<double>(count);
  return static_cast<double>(plan::extrapolate_bytes(small.bytes, static_cast<double>(most / 2),
                                                     large.bytes, static_cast<double>(most),
                                                     static_cast<double>(count))) /
         all;
}

}  // namespace

double loss_memory(const nn::Loss& loss, const plan::LayerProfile& profile, std::int64_t examples,
                   at::Tensor target, std::int64_t count, at::Device device) {
  if (device.is_cpu() || !target.defined()) return outputs_alone;
  const c10::InferenceMode normal(false);
  const at::AutoGradMode grad(true);
  try {
    if (const auto need = measure_whole(loss, profile, examples, target, count, device))
      return std::max(outputs_alone, *need);
    const double classes = target.numel() > 0 ? outputs_for_target(profile, examples, target) : 0;
    if (classes < 1) return outputs_alone;
    for (std::int64_t d = 0; d < target.dim(); ++d)
      target = target.narrow(d, 0, std::min(target.size(d), longest_side));
    const auto sizes = output_sizes(loss, target, static_cast<std::int64_t>(classes));
    const Need need =
        measure_loss(loss, sizes, profile.output_number_bytes, target.unsqueeze(0), device);
    return std::max(outputs_alone, need.ratio());
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
