#include "trestle/pipeline/stage.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/pipeline/boundary.h"

namespace trestle::pipeline {
namespace {

bool differentiable(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

// Autograd counts how often a tensor's memory was changed.
std::vector<std::uint32_t> versions(const nn::Values& values) {
  std::vector<std::uint32_t> result;
  for (const auto& value : values) {
    result.push_back(value.defined() && !value.is_inference() ? value._version() : 0);
  }
  return result;
}

}  // namespace

Stage::Stage(const nn::Graph& graph, const Cut& cut, int index, at::Device device)
    : graph_(graph),
      plan_(cut.stages[index]),
      device_(device),
      is_last_(index + 1 == static_cast<int>(cut.stages.size())),
      arguments_(plan_.last_layer - plan_.first_layer) {
  if (is_last_) model_outputs_ = cut.model_outputs;
  for (const auto& edge : graph.edges) {
    if (edge.to_layer < plan_.first_layer || edge.to_layer >= plan_.last_layer) continue;
    auto& arguments = arguments_[edge.to_layer - plan_.first_layer];
    if (static_cast<int>(arguments.size()) <= edge.to_argument) {
      arguments.resize(edge.to_argument + 1,
                       {nn::model_input, -1});  // output -1: nothing connected, None
    }
    arguments[edge.to_argument] = {edge.from_layer, edge.from_output};
  }
}

nn::Values Stage::run_layers(Pass& pass, const nn::Values& inputs, const nn::RunKey& key,
                             nn::Values& model_outputs) const {
  std::map<ValueId, int>
      uses;  // how often a value is still wanted: it is dropped after the last one
  for (const auto& arguments : arguments_) {
    for (const auto& value : arguments) ++uses[value];
  }
  for (const auto& value : plan_.outputs) ++uses[value];
  for (const auto& value : model_outputs_) ++uses[value];

  std::map<ValueId, at::Tensor> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) values[plan_.inputs[i]] = inputs[i];
  pass.node_numbers.clear();
  for (int layer = plan_.first_layer; layer < plan_.last_layer; ++layer) {
    pass.node_numbers.push_back(at::sequence_number::peek());
    nn::Values arguments;
    for (const auto& value : arguments_[layer - plan_.first_layer]) {
      arguments.push_back(values[value]);
      if (--uses[value] == 0) values.erase(value);
    }
    nn::Values results = nn::run_layer(graph_, layer, arguments, &key);
    arguments.clear();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const ValueId value{layer, static_cast<int>(i)};
      if (uses.contains(value)) values[value] = std::move(results[i]);
    }
  }
  pass.node_numbers.push_back(at::sequence_number::peek());
  nn::Values outputs;
  for (const auto& value : plan_.outputs) outputs.push_back(values[value]);
  for (const auto& value : model_outputs_) model_outputs.push_back(values[value]);
  return outputs;
}

Produced Stage::forward(Pass& pass, GraphMode mode, const nn::RunKey& key) const {
  const at::AutoGradMode grad_mode(mode == GraphMode::Keep);
  nn::Values inputs = pass.inputs;
  if (mode == GraphMode::Keep) {
    pass.leaves = pass.inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!pass.input_requires_grad[i]) continue;
      pass.leaves[i] = pass.inputs[i].detach().requires_grad_(true);
      inputs[i] = behind_boundary(pass.leaves[i]);
    }
    pass.inputs.clear();  // the leaves hold the same memory
  }
  // A layer that works in place on the stage's input would have R start from other values than F
  // did: such a stage works on copies. Whether it is one shows the first time, on copies too.
  const bool kept = mode == GraphMode::Discard;
  if (kept && *in_place_ != InPlace::No) {
    for (auto& input : inputs) {
      if (input.defined()) input = input.clone();
    }
  }
  const auto before = kept ? versions(inputs) : std::vector<std::uint32_t>();
  nn::Values model_outputs;
  nn::Values outputs = run_layers(pass, inputs, key, model_outputs);
  if (kept && *in_place_ != InPlace::Yes) {
    const bool changed = versions(inputs) != before;
    if (changed && *in_place_ == InPlace::No) {
      throw StateError("a layer changed the stage's input in place, as it did not the first time",
                       {.hint = "Use recompute = \"never\", or a layer that is always in place or "
                                "never."});
    }
    *in_place_ = changed ? InPlace::Yes : InPlace::No;
  }
  inputs.clear();

  Produced produced;
  pass.output_edges.clear();
  for (const auto& output : outputs) {
    // Without a graph nobody knows yet whether a gradient will be wanted: ask for it, R will tell.
    const bool wants =
        differentiable(output) && (mode == GraphMode::Discard || output.requires_grad());
    produced.values.push_back(output.defined() ? output.detach() : output);
    produced.requires_grad.push_back(wants);
    pass.output_edges.push_back(mode == GraphMode::Keep && wants
                                    ? torch::autograd::impl::gradient_edge(output)
                                    : torch::autograd::Edge());
  }
  pass.model_outputs = std::move(model_outputs);
  return produced;
}

void Stage::recompute(Pass& pass, const nn::RunKey& key) const {
  const nn::BufferKeeper keeper(buffers());
  forward(pass, GraphMode::Keep, key);
}

nn::Values Stage::backward(Pass& pass, const nn::Values& output_gradients,
                           const nn::Values& model_output_gradients) const {
  std::vector<torch::autograd::Edge> roots;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < model_output_gradients.size(); ++i) {
    if (!model_output_gradients[i].defined() || !pass.model_outputs[i].requires_grad()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(pass.model_outputs[i]));
    gradients.push_back(model_output_gradients[i]);
  }
  return finish(pass, std::move(roots), std::move(gradients), output_gradients);
}

nn::Values Stage::backward_from_loss(Pass& pass, const nn::Values& output_gradients,
                                     const at::Tensor& loss, const at::Tensor& gradient) const {
  std::vector<torch::autograd::Edge> roots;
  std::vector<at::Tensor> gradients;
  if (loss.requires_grad()) {
    roots.push_back(torch::autograd::impl::gradient_edge(loss));
    gradients.push_back(gradient);
  }
  return finish(pass, std::move(roots), std::move(gradients), output_gradients);
}

nn::Values Stage::finish(Pass& pass, std::vector<torch::autograd::Edge> roots,
                         std::vector<at::Tensor> gradients,
                         const nn::Values& output_gradients) const {
  for (std::size_t i = 0; i < output_gradients.size(); ++i) {
    if (!output_gradients[i].defined() || !pass.output_edges[i].is_valid()) continue;
    roots.push_back(pass.output_edges[i]);
    gradients.push_back(output_gradients[i]);
  }
  // The engine's own entry: unlike backward(tensors) it needs only the graph's edges, so the
  // outputs' memory could go.
  pass.model_outputs.clear();
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
  nn::Values input_gradients;
  for (std::size_t i = 0; i < pass.leaves.size(); ++i) {
    input_gradients.push_back(pass.input_requires_grad[i] ? pass.leaves[i].grad() : at::Tensor());
  }
  pass = Pass();
  return input_gradients;
}

std::string Stage::layer_of_node(const Pass& pass, std::uint64_t node) const {
  const auto& numbers = pass.node_numbers;
  const auto next = std::upper_bound(numbers.begin(), numbers.end(), node);
  if (next == numbers.begin() || next == numbers.end()) return "";
  return layer_name(plan_.first_layer + static_cast<int>(next - numbers.begin()) - 1);
}

std::vector<at::Tensor> Stage::parameters() const {
  std::vector<at::Tensor> result;
  for (int i = plan_.first_layer; i < plan_.last_layer; ++i) {
    const auto& module = graph_.layers[i].module;
    if (!module) continue;
    for (auto& parameter : module->parameters()) result.push_back(parameter);
  }
  return result;
}

std::vector<at::Tensor> Stage::buffers() const {
  std::vector<at::Tensor> result;
  for (int i = plan_.first_layer; i < plan_.last_layer; ++i) {
    const auto& module = graph_.layers[i].module;
    if (!module) continue;
    for (auto& buffer : module->buffers()) {
      if (buffer.defined()) result.push_back(buffer);
    }
  }
  return result;
}

}  // namespace trestle::pipeline
