#include "trestle/precision/layer_speed.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/nn/graph.h"

namespace trestle::precision {
namespace {

constexpr double most_products = 8e6;  // multiplications of a forward: 1 ms in fp32
constexpr std::int64_t most_rows = 32;
constexpr double slow_from = 2;  // times as long as fp32
// Seconds. Below it an operator's start takes longest, and a user waits for nothing.
constexpr double noticed_from = 0.5e-3;
constexpr double bf16_until = 1.5;  // bf16 is an alternative up to this many times fp32

struct LayerSample {
  std::vector<std::int64_t> weight;
  std::vector<std::int64_t> input;
  std::vector<std::int64_t> padding;  // empty for a linear layer
};

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) all *= size;
  return all;
}

// A large layer gets fewer inputs and outputs, and not fewer rows or positions than in a run: with
// few of them, fp32 waits for memory.
std::vector<std::int64_t> narrowed(std::vector<std::int64_t> weight) {
  constexpr std::int64_t most_inputs = 4096;
  const std::int64_t kernel = product({weight.begin() + 2, weight.end()});
  const double positions = weight.size() == 2 ? most_rows : 200;
  weight[1] = std::min(weight[1], std::max<std::int64_t>(most_inputs / kernel, 1));
  const double for_each_output = positions * static_cast<double>(weight[1] * kernel);
  const auto most_outputs = static_cast<std::int64_t>(most_products / for_each_output);
  weight[0] = std::min(weight[0], std::max<std::int64_t>(most_outputs, 1));
  return weight;
}

LayerSample sample_of(const std::vector<std::int64_t>& whole) {
  const std::vector<std::int64_t> weight = narrowed(whole);
  const double positions = most_products / static_cast<double>(product(weight));
  LayerSample sample{.weight = weight, .input = {}, .padding = {}};
  if (weight.size() == 2) {
    const auto rows = std::clamp<std::int64_t>(static_cast<std::int64_t>(positions), 1, most_rows);
    sample.input = {rows, weight[1]};
    return sample;
  }
  const auto spatial = static_cast<double>(weight.size() - 2);
  const auto side = static_cast<std::int64_t>(std::pow(positions, 1 / spatial));
  sample.input = {1, weight[1]};
  for (std::size_t i = 2; i < weight.size(); ++i) {
    sample.input.push_back(
        std::clamp<std::int64_t>(side, weight[i], std::max(weight[i], most_rows)));
    sample.padding.push_back(weight[i] / 2);
  }
  return sample;
}

// Forward and backward without autograd, which a program may not have set up yet: virtual devices
// must be installed before the first backward.
std::function<void()> step_of(const LayerSample& sample, at::ScalarType dtype) {
  const at::Tensor input = at::ones(sample.input, at::TensorOptions().dtype(dtype));
  const at::Tensor weight = at::full(sample.weight, 0.01, at::TensorOptions().dtype(dtype));
  if (sample.padding.empty())
    return [=] {
      const at::Tensor output = at::linear(input, weight);
      at::mm(output, weight);
      at::mm(output.t(), input);
    };
  const std::vector<std::int64_t> ones(sample.padding.size(), 1), zeros(sample.padding.size(), 0);
  return [=, padding = sample.padding] {
    const at::Tensor output =
        at::convolution(input, weight, {}, ones, padding, ones, /*transposed=*/false, zeros, 1);
    at::convolution_backward(output, input, weight, at::OptionalIntArrayRef(), ones, padding, ones,
                             /*transposed=*/false, zeros, 1, {true, true, false});
  };
}

// The fastest of three runs; a slow layer runs once.
double seconds_of(const LayerSample& sample, at::ScalarType dtype) {
  constexpr double long_enough = 0.05;
  const std::function<void()> step = step_of(sample, dtype);
  double best = 1e300;
  for (int i = 0; i < 3 && (i == 0 || best < long_enough); ++i) {
    const Stopwatch watch;
    step();
    best = std::min(best, watch.seconds());
  }
  return best;
}

// The largest weight of the tensors so far.
struct LargestWeight {
  std::string name;
  std::vector<std::int64_t> shape;
  bool on_gpu = false;

  void look(const std::string& tensor_name, const at::Tensor& tensor) {
    on_gpu = on_gpu || tensor.is_cuda();
    constexpr std::int64_t most_dimensions = 5;
    if (tensor.dim() < 2 || tensor.dim() > most_dimensions || tensor.numel() == 0) return;
    if (!shape.empty() && tensor.numel() <= product(shape)) return;
    name = tensor_name;
    shape = tensor.sizes().vec();
  }

  std::optional<LayerSpeed> measure() const {
    if (shape.empty() || on_gpu) return {};
    return measure_layer_speed(name, shape);
  }
};

std::string name_of(Precision precision) {
  return precision == Precision::Float32    ? "fp32"
         : precision == Precision::BFloat16 ? "bf16"
                                            : "fp16";
}

// Two digits: 1.8, 15.
double rounded(double times) {
  return times < 9.95 ? std::round(times * 10) / 10 : std::round(times);
}

}  // namespace

double LayerSpeed::of(Precision precision) const {
  return precision == Precision::Float32 ? fp32 : precision == Precision::BFloat16 ? bf16 : fp16;
}

LayerSpeed measure_layer_speed(const std::string& name, const std::vector<std::int64_t>& weight) {
  const at::AutoGradMode no_graph(false);
  const LayerSample sample = sample_of(weight);
  return {.weight = text(name, " [", join(weight, ", "), "]"),
          .fp32 = seconds_of(sample, at::kFloat),
          .bf16 = seconds_of(sample, at::kBFloat16),
          .fp16 = seconds_of(sample, at::kHalf)};
}

std::optional<LayerSpeed> measure_layer_speed(const NamedTensors& parameters) {
  LargestWeight largest;
  for (const auto& [name, parameter] : parameters) largest.look(name, parameter);
  return largest.measure();
}

std::optional<LayerSpeed> measure_layer_speed(const nn::Layers& model) {
  LargestWeight largest;
  for (const nn::Layer& layer : model.graph().layers) {
    const std::shared_ptr<void> for_now = layer.module.make_temporarily();
    for (const auto& [name, parameter] : layer.named_parameters())
      largest.look(layer.name + "." + name, parameter);
  }
  return largest.measure();
}

std::optional<SlowPrecision> find_slow_precision(Precision precision, const LayerSpeed& speed) {
  if (precision == Precision::Float32 || speed.fp32 <= 0) return {};
  const double times = speed.of(precision) / speed.fp32;
  if (times < slow_from || speed.of(precision) < noticed_from) return {};
  const bool bf16_helps = precision == Precision::Float16 && speed.bf16 <= bf16_until * speed.fp32;
  return SlowPrecision{.precision = precision,
                       .speed = speed,
                       .times = times,
                       .better = bf16_helps ? Precision::BFloat16 : Precision::Float32};
}

std::string describe(const SlowPrecision& slow) {
  const LayerSpeed& speed = slow.speed;
  std::string words = text(
      name_of(slow.precision), " takes ", rounded(slow.times),
      " times as long as fp32 on this CPU: ", format_duration(speed.of(slow.precision)), ", and ",
      format_duration(speed.fp32), ", for one layer's forward and backward, ", speed.weight);
  if (slow.better == Precision::BFloat16)
    words += text("; bf16 takes ", format_duration(speed.bf16));
  return words;
}

}  // namespace trestle::precision
