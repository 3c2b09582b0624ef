#include "trestle/pipeline/stage.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/device.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/nn/detail/autocast_scope.h"

namespace trestle::pipeline {
namespace {

bool differentiable(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

std::vector<ValueId> outputs_of(const StagePlan& plan, const std::vector<ValueId>& model_outputs) {
  std::vector<ValueId> result = plan.outputs;
  result.insert(result.end(), model_outputs.begin(), model_outputs.end());
  return result;
}

std::uint64_t mix(std::uint64_t key, const std::vector<bool>& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) key = keyed_seed(key, static_cast<std::int64_t>(i), 0, 0);
  }
  return keyed_seed(key, static_cast<std::int64_t>(flags.size()), 0, 0);
}

// A parameter's first gradient may be a view of what a layer was given (that of `x + p.view(...)`):
// adding the next one to it would change a gradient that is on its way to another stage, or the
// caller's own tensor. While it lives gradients come to be; at its end each has memory of its own.
class NewGradients {
 public:
  explicit NewGradients(const nn::ModuleState& modules) {
    for (const auto& [name, parameter] : modules.parameters) {
      if (!parameter.grad().defined()) without_.push_back(parameter);
    }
  }
  ~NewGradients() {
    for (auto& parameter : without_) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || !gradient.has_storage()) continue;
      const bool shared = gradient.storage().use_count() > 1;
      if (shared || nn::is_part_of_more(gradient)) parameter.mutable_grad() = gradient.clone();
    }
  }
  NewGradients(const NewGradients&) = delete;
  NewGradients& operator=(const NewGradients&) = delete;

 private:
  std::vector<at::Tensor> without_;
};

}  // namespace

Stage::Stage(const nn::Graph& graph, const Cut& cut, int index, at::Device device)
    : graph_(graph),
      plan_(cut.stages[index]),
      index_(index),
      device_(device),
      is_last_(index + 1 == static_cast<int>(cut.stages.size())),
      segment_(graph, plan_.first_layer, plan_.last_layer, plan_.inputs,
               outputs_of(plan_, is_last_ ? cut.model_outputs : std::vector<ValueId>())),
      modules_(nn::ModuleState::of(graph, plan_.first_layer, plan_.last_layer)),
      learned_(std::make_shared<Learned>()) {
  std::vector<std::string> names;
  for (const auto& value : plan_.inputs)
    names.push_back("the value of " + segment_.describe(value));
  boundary_ = std::make_shared<nn::Boundary>(text("stage ", index), std::move(names));
}

void Stage::check_devices() const {
  const auto here = [&](const at::Tensor& tensor) { return tensor.device() == device_; };
  const auto& parameters = modules_.parameters;
  const bool all_here = std::all_of(parameters.begin(), parameters.end(),
                                    [&](const auto& named) { return here(named.second); }) &&
                        std::all_of(modules_.buffers.begin(), modules_.buffers.end(), here);
  if (all_here) return;
  for (int i = plan_.first_layer; i < plan_.last_layer; ++i) {
    const nn::Layer& layer = graph_.layers[i];
    if (!layer.module) continue;
    for (const auto& named : {layer.module->named_parameters(), layer.module->named_buffers()}) {
      for (const auto& item : named) {
        if (!item.value().defined() || here(item.value())) continue;
        throw StateError(
            text("'", layer.name, ".", item.key(), "' is on ", device_name(item.value().device()),
                 ", but ", boundary_->consumer(), ", which layer '", layer.name, "' is in, is on ",
                 device_name(device_)),
            {.hint = "A pipeline places its layers when it is made. Move none of them "
                     "afterwards: make a new Pipeline with other devices."});
      }
    }
  }
}

// Runs that may differ in what they write to, or in which outputs have a gradient.
std::uint64_t Stage::mode_of(bool with_graph, const Pass& pass) const {
  std::uint64_t key = with_graph ? pass.input_kinds + 1 : pass.input_kinds;
  key = mix(key, modules_.training_flags());
  key = mix(key, modules_.trained_flags());
  return mix(key, pass.input_wants_gradient);
}

nn::Segment::Result Stage::run(Pass& pass, bool with_graph, const nn::RunKey& key) const {
  const at::AutoGradMode grad_mode(with_graph);
  nn::Values inputs;
  std::vector<bool> owned;
  std::vector<std::optional<nn::SharedWith>> shared;
  for (const auto& input : pass.inputs) {
    inputs.push_back(input.value);
    owned.push_back(input.owned && !pass.snapshot);  // with R to come the inputs are needed again
    shared.push_back(input.shared);
  }
  if (!pass.snapshot) pass.inputs.clear();
  auto handed = boundary_->hand_over(inputs, owned, mode_of(with_graph, pass));
  inputs.clear();
  if (with_graph) {
    pass.sink.emplace(handed.values.size());
    for (std::size_t i = 0; i < handed.values.size(); ++i) {
      if (pass.input_wants_gradient[i]) handed.values[i] = pass.sink->begin(i, handed.values[i]);
    }
  }
  auto result = segment_.run(std::exchange(handed.values, {}), shared, &key);
  boundary_->take_back(handed);
  // A buffer that is handed on would change under whoever takes it with the next forward.
  for (std::size_t i = 0; i < result.outputs.size(); ++i) {
    const auto& shared_with = result.outputs_shared[i];
    if (shared_with && shared_with->owner == nn::SharedWith::Owner::Buffer)
      result.outputs[i] = result.outputs[i].clone();
  }
  pass.node_numbers = std::move(result.node_numbers);
  return result;
}

// Splits what the layers made into what goes on, detached, and what backward() needs.
std::vector<StageValue> Stage::hand_on(Pass& pass, nn::Segment::Result result) const {
  std::vector<StageValue> values;
  pass.output_edges.clear();
  pass.wants_gradient.clear();
  pass.model_outputs.clear();
  for (std::size_t i = 0; i < result.outputs.size(); ++i) {
    const at::Tensor& output = result.outputs[i];
    const bool wants = differentiable(output) && output.requires_grad();
    pass.wants_gradient.push_back(wants);
    if (i >= plan_.outputs.size()) {
      pass.model_outputs.push_back(output);
      continue;
    }
    pass.output_edges.push_back(wants ? torch::autograd::impl::gradient_edge(output)
                                      : torch::autograd::Edge());
    values.push_back({.value = output.defined() ? output.detach() : output,
                      .wants_gradient = wants,
                      .shared = result.outputs_shared[i]});
  }
  return values;
}

std::vector<StageValue> Stage::forward(Pass& pass, GraphMode mode, nn::BufferCopies& copies,
                                       const nn::RunKey& key) const {
  nn::Values shown;
  pass.input_wants_gradient.clear();
  pass.input_kinds = 0;
  for (const auto& input : pass.inputs) {
    shown.push_back(input.value);
    pass.input_wants_gradient.push_back(input.wants_gradient);
    const auto kind = input.value.defined() ? static_cast<int>(input.value.scalar_type()) : -1;
    pass.input_kinds = keyed_seed(pass.input_kinds, kind, 0, 0);
  }
  pass.input_shapes = nn::describe(shown);
  shown.clear();
  const nn::AutocastScope autocast(nn::AutocastState::current());
  const nn::CheckpointingScope checkpointing(
      mode == GraphMode::Recompute ? nn::Checkpointing::First : nn::Checkpointing::None);
  if (mode != GraphMode::Recompute) return hand_on(pass, run(pass, mode == GraphMode::Keep, key));

  pass.snapshot.emplace(modules_, copies, key);
  const std::uint64_t mode_key = mode_of(/*with_graph=*/false, pass);
  const auto known = learned_->find(mode_key);
  auto values = hand_on(pass, run(pass, /*with_graph=*/!known, key));
  pass.snapshot->note_parameters(modules_);
  pass.input_versions.clear();
  for (const auto& input : pass.inputs) pass.input_versions.push_back(nn::version_of(input.value));
  std::vector<bool> differentiable_outputs;
  for (const auto& made : values) differentiable_outputs.push_back(differentiable(made.value));
  for (const auto& made : pass.model_outputs)
    differentiable_outputs.push_back(differentiable(made));
  if (!known) {
    learned_->add(mode_key, pass.wants_gradient, differentiable_outputs);
  } else {
    // Without a graph: as it was learnt, and for a value that was None then, to be safe, yes.
    for (std::size_t i = 0; i < known->size(); ++i) {
      pass.wants_gradient[i] =
          differentiable_outputs[i] && (*known)[i] != Learned::Wish::WantsNoGradient;
      if (i < values.size()) values[i].wants_gradient = pass.wants_gradient[i];
    }
  }
  pass.sink.reset();
  pass.output_edges.clear();
  for (auto& output : pass.model_outputs) output = output.defined() ? output.detach() : output;
  return values;
}

void Stage::recompute(Pass& pass, Buffers buffers) const {
  const nn::Snapshot snapshot = *std::exchange(pass.snapshot, std::nullopt);
  for (std::size_t i = 0; i < pass.inputs.size(); ++i) {
    if (nn::version_of(pass.inputs[i].value) == pass.input_versions[i]) continue;
    throw StateError(text("the value of ", segment_.describe(plan_.inputs[i]),
                          " was changed in place between forward and backward, and its stage has "
                          "to be run again from it"),
                     {.hint = "Change it after backward(), or change a clone."});
  }
  const nn::Snapshot::Again again(snapshot, modules_);
  const nn::CheckpointingScope checkpointing(nn::Checkpointing::Recompute);
  if (buffers == Buffers::PutBack) {
    pass.buffers_again = std::make_shared<nn::BufferKeeper>(modules_.buffers);
    pass.buffers_again->put_in(snapshot.buffers());
  }
  const auto announced = pass.wants_gradient;
  hand_on(pass, run(pass, /*with_graph=*/true, snapshot.key()));
  for (std::size_t i = 0; i < announced.size(); ++i) {
    if (announced[i] || !pass.wants_gradient[i]) continue;
    throw StateError(
        text("the value of ", segment_.describe(segment_.outputs()[i]),
             " has a gradient when its layer is run again, and had none at first"),
        {.hint = "Use recompute = \"never\" for the stage, or give the value a gradient "
                 "always or never."});
  }
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
    const NewGradients new_gradients(modules_);
    const nn::AutocastScope no_autocast(nn::AutocastState::off());
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
  nn::Values input_gradients(plan_.inputs.size());
  for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
    if (pass.sink && pass.input_wants_gradient[i]) input_gradients[i] = pass.sink->gradient(i);
  }
  pass = Pass();
  // A part of cat()'s gradient would hold all of it for as long as its message waits.
  for (auto& gradient : input_gradients) {
    if (nn::is_part_of_more(gradient)) gradient = gradient.clone();
  }
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
  for (const auto& [name, parameter] : modules_.parameters) result.push_back(parameter);
  return result;
}

std::optional<std::vector<Stage::Learned::Wish>> Stage::Learned::find(std::uint64_t mode) {
  const std::lock_guard lock(mutex);
  const auto found = wishes.find(mode);
  return found == wishes.end() ? std::nullopt : std::optional(found->second);
}

void Stage::Learned::add(std::uint64_t mode, const std::vector<bool>& wants_gradient,
                         const std::vector<bool>& differentiable) {
  std::vector<Wish> learnt;
  for (std::size_t i = 0; i < wants_gradient.size(); ++i) {
    learnt.push_back(!differentiable[i]  ? Wish::Unknown
                     : wants_gradient[i] ? Wish::WantsGradient
                                         : Wish::WantsNoGradient);
  }
  const std::lock_guard lock(mutex);
  wishes[mode] = std::move(learnt);
}

}  // namespace trestle::pipeline
