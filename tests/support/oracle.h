#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/pipeline/execute/micro_batch.h"

// The two oracles of the invariant "same gradients for every plan", and comparisons of plans with
// them.
namespace trestle::oracle {

// Loss, gradients and buffers of one step, by unsplit name, on the CPU.
struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> buffers;
  at::Tensor output;
  at::Tensor input_gradient;
};

inline std::map<std::string, at::Tensor> to_map(
    const std::vector<std::pair<std::string, at::Tensor>>& named) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : named) result[name] = tensor.detach().cpu().clone();
  return result;
}

inline std::map<std::string, at::Tensor> gradients_of(
    const std::vector<std::pair<std::string, at::Tensor>>& named) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, parameter] : named) {
    result[name] =
        parameter.grad().defined() ? parameter.grad().detach().cpu().clone() : at::Tensor();
  }
  return result;
}

inline Outcome collect(const nn::Layers& net, double loss, const at::Tensor& output,
                       const at::Tensor& input) {
  return {.loss = loss,
          .gradients = gradients_of(net.named_parameters()),
          .buffers = to_map(net.named_buffers()),
          .output = output.defined() ? output.detach().cpu() : output,
          .input_gradient = input.grad().defined() ? input.grad().cpu().clone() : at::Tensor()};
}

// The plain model on the whole batch: for nets without batch statistics and without dropout.
inline Outcome whole_batch(nn::Layers net, const at::Tensor& input, const at::Tensor& target,
                           const nn::Loss& loss) {
  net.zero_grad();
  const at::Tensor x = input.detach().clone().requires_grad_(input.requires_grad());
  const at::Tensor output = net.forward(x);
  const at::Tensor value = loss.value(output, target);
  value.backward();
  return collect(net, value.item<double>(), output, x);
}

// The plain model over the same micro-batches in order, with the same random keys: applies to every
// net. Losses are weighted as an additive loss requires; a whole-batch loss is computed on all
// outputs.
inline Outcome looped(nn::Layers net, const at::Tensor& input, const at::Tensor& target,
                      const nn::Loss& loss, int micro_batches, std::uint64_t seed = 0,
                      std::int64_t step = 0) {
  net.zero_grad();
  const at::Tensor x = input.detach().clone().requires_grad_(input.requires_grad());
  const nn::Graph graph = net.graph();
  const auto pieces = pipeline::split({x, target}, micro_batches);
  std::vector<at::Tensor> outputs;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const nn::RunKey key{.seed = seed, .step = step, .micro_batch = static_cast<std::int64_t>(m)};
    outputs.push_back(nn::run(graph, {pieces[m][0]}, key).at(0));
  }
  at::Tensor value;
  double number = 0;  // losses are summed in double precision, as step() documents
  if (loss.kind == nn::Loss::Kind::WholeBatch) {
    value = loss.value(at::cat(outputs), target);
    number = value.item<double>();
  } else {
    double total = 0;
    for (const auto& piece : pieces) total += loss.weight(piece[1]);
    for (std::size_t m = 0; m < pieces.size(); ++m) {
      const double share = loss.weight(pieces[m][1]) / total;
      const at::Tensor part = loss.value(outputs[m], pieces[m][1]);
      number += part.item<double>() * share;
      value = value.defined() ? value + part * share : part * share;
    }
  }
  value.backward();
  return collect(net, number, at::cat(outputs), x);
}

// The largest difference, relative to the tensor's largest element or to a thousandth of the
// largest of all tensors. A gradient that is zero up to rounding has no scale of its own.
inline double difference(const std::map<std::string, at::Tensor>& expected,
                         const std::map<std::string, at::Tensor>& actual) {
  if (expected.size() != actual.size()) return 1e9;
  double largest = 0;
  for (const auto& [name, tensor] : expected) {
    if (tensor.defined() && tensor.numel() > 0)
      largest = std::max(largest, tensor.abs().max().item<double>());
  }
  double worst = 0;
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end() || found->second.defined() != tensor.defined()) return 1e9;
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (found->second.sizes() != tensor.sizes()) return 1e9;
    const double scale = std::max(tensor.abs().max().item<double>(), largest * 1e-3);
    worst = std::max(worst,
                     (tensor - found->second).abs().max().item<double>() / std::max(scale, 1e-12));
  }
  return worst;
}

// Nets are compared in double precision. Rounding, which depends on the order of additions, is then
// far below any error: a wrong weight, mask or order shows as 1e-3 or more.
inline constexpr double rounding = 1e-9;

// The same net with parameters and buffers in double precision.
inline nn::Layers in_double(nn::Layers net) {
  for (const auto& layer : net.graph().layers) {
    if (layer.module) layer.module->to(at::kDouble);
  }
  return net;
}

inline void expect_same(const Outcome& expected, const Outcome& actual) {
  EXPECT_NEAR(expected.loss, actual.loss, rounding * std::max(1.0, std::abs(expected.loss)));
  EXPECT_LT(difference(expected.gradients, actual.gradients), rounding);
  EXPECT_LT(difference(expected.buffers, actual.buffers), rounding);
}

}  // namespace trestle::oracle
