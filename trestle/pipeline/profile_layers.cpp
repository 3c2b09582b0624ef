#include "trestle/pipeline/profile_layers.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>

#include "trestle/base/stopwatch.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/mode_scope.h"
#include "trestle/pipeline/cut.h"

namespace trestle::pipeline {
namespace {

// What reaches a layer: copies, since it may work in place, with a gradient where the model's would
// have one.
struct Arguments {
  nn::Values values;
  std::vector<at::Tensor> wanted;  // gradients of these: the copies' originals, and parameters
};

Arguments arguments_of(const nn::Graph& graph, int layer,
                       const std::map<ValueId, at::Tensor>& values) {
  Arguments result;
  for (const auto& edge : graph.edges) {
    if (edge.to_layer != layer) continue;
    const auto argument = static_cast<std::size_t>(edge.to_argument);
    if (result.values.size() <= argument) result.values.resize(argument + 1);
    const at::Tensor& value = values.at({edge.from_layer, edge.from_output});
    if (!value.defined()) continue;
    at::Tensor original = value.detach();
    if (value.is_floating_point() && edge.from_layer != nn::model_input) {
      original.requires_grad_();
      result.wanted.push_back(original);
    }
    result.values[argument] = original.clone();
  }
  for (auto& parameter : graph.layers[layer].parameters()) {
    if (parameter.requires_grad()) result.wanted.push_back(parameter);
  }
  return result;
}

// One forward and backward; no gradient is accumulated anywhere.
nn::Values run_once(const nn::Graph& graph, int layer, const Arguments& arguments) {
  const nn::RunKey key;
  nn::Values results = nn::run_layer(graph, layer, arguments.values, &key);
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;
  for (const auto& result : results) {
    if (!result.defined() || !result.requires_grad()) continue;
    outputs.push_back(result);
    gradients.push_back(at::ones_like(result));
  }
  if (!outputs.empty() && !arguments.wanted.empty()) {
    torch::autograd::grad(outputs, arguments.wanted, gradients, /*retain_graph=*/false,
                          /*create_graph=*/false, /*allow_unused=*/true);
  }
  return results;
}

}  // namespace

std::vector<double> profile_layers(const nn::Graph& graph, const nn::Values& micro_batch) {
  std::vector<at::Tensor> buffers;
  for (const auto& layer : graph.layers) {
    for (auto& buffer : layer.buffers()) buffers.push_back(buffer);
  }
  const nn::BufferKeeper keep_buffers(buffers);
  const nn::ModeScope training(graph, nn::ModeScope::Mode::Train);
  const at::AutoGradMode grad(true);
  std::map<ValueId, at::Tensor> values;
  for (std::size_t i = 0; i < micro_batch.size(); ++i) {
    const at::Tensor& value = micro_batch[i];
    values[{nn::model_input, static_cast<int>(i)}] = value.defined() ? value.detach() : value;
  }
  std::vector<double> costs;
  for (int layer = 0; layer < static_cast<int>(graph.layers.size()); ++layer) {
    double best = 0;
    nn::Values results;
    // The first round warms up; the faster of the others counts.
    for (int round = 0; round < 3; ++round) {
      const Arguments arguments = arguments_of(graph, layer, values);
      const Stopwatch watch;
      results = run_once(graph, layer, arguments);
      const double took = watch.seconds();
      best = round < 2 ? took : std::min(best, took);
    }
    costs.push_back(best);
    for (std::size_t i = 0; i < results.size(); ++i) {
      values[{layer, static_cast<int>(i)}] =
          results[i].defined() ? results[i].detach() : results[i];
    }
  }
  return costs;
}

}  // namespace trestle::pipeline
