#include "trestle/pipeline/execute/stage.h"

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

// Made before a backward. own() gives each new gradient of a parameter memory of its own. A first
// gradient may be a view of a gradient that a layer received (for `x + p.view(...)`): accumulating
// into it would change a gradient in flight to another stage, or the caller's own tensor.
class OwnNewGradients {
 public:
  explicit OwnNewGradients(const nn::ModuleState& modules) {
    for (const auto& [name, parameter] : modules.parameters) {
      if (!parameter.grad().defined()) without_.push_back(parameter);
    }
  }
  void own() {
    for (auto& parameter : without_) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || !gradient.has_storage()) continue;
      const bool shared = gradient.storage().use_count() > 1;
      if (shared || nn::is_part_of_more(gradient)) parameter.mutable_grad() = gradient.clone();
    }
  }

 private:
  std::vector<at::Tensor> without_;
};

}  // namespace

Stage::Stage(const nn::Graph& graph, const Cut& cut, int index, at::Device device,
             int checkpoint_segments)
    : graph_(graph),
      plan_(cut.stages[index]),
      index_(index),
      device_(device),
      is_last_(index + 1 == static_cast<int>(cut.stages.size())),
      segment_({std::shared_ptr<const nn::Graph>(), &graph},
               {.first = plan_.first_layer, .last = plan_.last_layer},
               nn::cut_evenly({.first = plan_.first_layer, .last = plan_.last_layer},
                              checkpoint_segments),
               plan_.inputs,
               outputs_of(plan_, is_last_ ? cut.model_outputs : std::vector<ValueId>())),
      modules_(nn::ModuleState::of(graph, plan_.first_layer, plan_.last_layer)),
      output_gradients_(std::make_shared<OutputGradients>()) {
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
                 ", but ", boundary_->consumer(), ", the stage of layer '", layer.name, "', is on ",
                 device_name(device_)),
            {.hint = "A pipeline moves its layers when it is made. Do not move them afterwards: "
                     "make a new Pipeline with other devices."});
      }
    }
  }
}

// Runs with different keys may write to different values, or need gradients of different outputs.
std::uint64_t Stage::mode_key(Autograd autograd, const Pass& pass) const {
  std::uint64_t key = autograd == Autograd::On ? pass.input_kinds + 1 : pass.input_kinds;
  key = mix(key, modules_.training_flags());
  key = mix(key, modules_.trained_flags());
  return mix(key, pass.input_wants_gradient);
}

nn::Segment::Result Stage::run(Pass& pass, Autograd autograd, const nn::RunKey& key) const {
  const at::AutoGradMode grad_mode(autograd == Autograd::On);
  nn::Values inputs;
  std::vector<bool> owned;
  std::vector<std::optional<nn::SharedWith>> shared;
  for (const auto& input : pass.inputs) {
    inputs.push_back(input.value);
    owned.push_back(input.owned && !pass.snapshot);  // R needs the inputs again
    shared.push_back(input.shared);
  }
  if (!pass.snapshot) pass.inputs.clear();
  auto handed = boundary_->hand_over(inputs, owned, mode_key(autograd, pass));
  inputs.clear();
  if (autograd == Autograd::On) {
    pass.sink.emplace(handed.values.size());
    for (std::size_t i = 0; i < handed.values.size(); ++i) {
      if (pass.input_wants_gradient[i]) handed.values[i] = pass.sink->begin(i, handed.values[i]);
    }
  }
  recompute::RecomputedNodes recomputed;
  auto result = segment_.run(std::exchange(handed.values, {}), shared, &key);
  pass.recomputed_nodes = recomputed.take();
  boundary_->take_back(handed);
  // The next forward may change a buffer, so a buffer that is an output is copied.
  for (std::size_t i = 0; i < result.outputs.size(); ++i) {
    const auto& shared_with = result.outputs_shared[i];
    if (shared_with && shared_with->owner == nn::SharedWith::Owner::Buffer)
      result.outputs[i] = result.outputs[i].clone();
  }
  pass.node_numbers = std::move(result.node_numbers);
  return result;
}

// Returns the outputs, detached. The pass keeps what backward() needs.
std::vector<StageValue> Stage::detach_outputs(Pass& pass, nn::Segment::Result result) const {
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
  nn::Values inputs;
  pass.input_wants_gradient.clear();
  pass.input_kinds = 0;
  for (const auto& input : pass.inputs) {
    inputs.push_back(input.value);
    pass.input_wants_gradient.push_back(input.wants_gradient);
    const auto kind = input.value.defined() ? static_cast<int>(input.value.scalar_type()) : -1;
    pass.input_kinds = keyed_seed(pass.input_kinds, kind, 0, 0);
  }
  pass.input_shapes = nn::describe(inputs);
  inputs.clear();
  // The cast weights of all threads are in one table, which another stage's scope clears: by chance
  // the gradients of a weight with several uses would be added in 16 bits or in fp32.
  nn::AutocastState casts = nn::AutocastState::current();
  casts.keeps_weights = false;
  const nn::AutocastScope autocast(casts);
  const nn::CheckpointingScope checkpointing(
      mode == GraphMode::Recompute ? nn::Checkpointing::First : nn::Checkpointing::None);
  if (mode == GraphMode::Recompute) return forward_for_recompute(pass, copies, key);
  const Autograd autograd = mode == GraphMode::Keep ? Autograd::On : Autograd::Off;
  return detach_outputs(pass, run(pass, autograd, key));
}

std::vector<StageValue> Stage::forward_for_recompute(Pass& pass, nn::BufferCopies& copies,
                                                     const nn::RunKey& key) const {
  pass.snapshot.emplace(modules_, copies, key);
  const std::uint64_t mode = mode_key(Autograd::Off, pass);
  const auto known = output_gradients_->find(mode);
  auto values = detach_outputs(pass, run(pass, known ? Autograd::Off : Autograd::On, key));
  pass.snapshot->note_parameters(modules_);
  pass.input_versions.clear();
  for (const auto& input : pass.inputs) pass.input_versions.push_back(nn::version_of(input.value));
  std::vector<bool> differentiable_outputs;
  for (const auto& output : values) differentiable_outputs.push_back(differentiable(output.value));
  for (const auto& output : pass.model_outputs)
    differentiable_outputs.push_back(differentiable(output));
  if (!known) {
    output_gradients_->add(mode, pass.wants_gradient, differentiable_outputs);
  } else {
    // There is no graph to tell. An output of unknown need gets a gradient, to be safe.
    for (std::size_t i = 0; i < known->size(); ++i) {
      pass.wants_gradient[i] =
          differentiable_outputs[i] && (*known)[i] != OutputGradients::Need::NotNeeded;
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
                          " was changed in place between forward and backward, but its stage "
                          "needs it for the recomputation"),
                     {.hint = "Change it after backward(), or change a clone."});
  }
  const nn::Snapshot::Again again(snapshot, modules_);
  const nn::CheckpointingScope checkpointing(nn::Checkpointing::Recompute);
  std::optional<nn::BufferKeeper> keeper;
  if (buffers == Buffers::Restore) {
    keeper.emplace(modules_.buffers);
    keeper->put_in(snapshot.buffers());
  }
  const auto wanted_before = pass.wants_gradient;
  detach_outputs(pass, run(pass, Autograd::On, snapshot.key()));
  if (keeper) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& buffer : modules_.buffers)
      pass.buffers_again.push_back(buffer.defined() ? buffer.clone() : buffer);
    keeper.reset();
  }
  for (std::size_t i = 0; i < wanted_before.size(); ++i) {
    if (wanted_before[i] || !pass.wants_gradient[i]) continue;
    throw StateError(
        text("the value of ", segment_.describe(segment_.outputs()[i]),
             " needs a gradient when its layer is recomputed, but needed none in the forward"),
        {.hint = "Set recompute = \"never\" for the stage, or let the value need a gradient "
                 "always or never."});
  }
}

nn::Values Stage::backward(Pass& pass, BackwardPart part, const nn::Values& output_gradients,
                           const nn::Values& model_output_gradients) const {
  GradientRoots roots;
  for (std::size_t i = 0; i < model_output_gradients.size(); ++i) {
    if (!model_output_gradients[i].defined() || !pass.model_outputs[i].requires_grad()) continue;
    roots.add(torch::autograd::impl::gradient_edge(pass.model_outputs[i]),
              model_output_gradients[i]);
  }
  return finish(pass, part, std::move(roots), output_gradients);
}

nn::Values Stage::backward_from_loss(Pass& pass, BackwardPart part,
                                     const nn::Values& output_gradients, const at::Tensor& loss,
                                     const at::Tensor& gradient) const {
  GradientRoots roots;
  if (loss.requires_grad()) roots.add(torch::autograd::impl::gradient_edge(loss), gradient);
  return finish(pass, part, std::move(roots), output_gradients);
}

std::unique_ptr<nn::BufferKeeper> Stage::buffers_of(const Pass& pass) const {
  if (pass.buffers_again.empty()) return nullptr;
  auto keeper = std::make_unique<nn::BufferKeeper>(modules_.buffers);
  keeper->put_in(pass.buffers_again);
  return keeper;
}

nn::Values Stage::finish(Pass& pass, BackwardPart part, GradientRoots roots,
                         const nn::Values& output_gradients) const {
  for (std::size_t i = 0; i < output_gradients.size(); ++i) {
    if (!output_gradients[i].defined() || !pass.output_edges[i].is_valid()) continue;
    roots.add(pass.output_edges[i], output_gradients[i]);
  }
  // Calls the engine itself: unlike backward(tensors), it needs only edges, so the outputs' memory
  // is free already.
  pass.model_outputs.clear();
  nn::Values gradients = input_gradients(pass, part, roots);
  Pass rest;
  if (part == BackwardPart::Inputs) {
    rest.weights = std::move(pass.weights);
    rest.buffers_again = std::move(pass.buffers_again);
    rest.input_shapes = std::move(pass.input_shapes);
    rest.node_numbers = std::move(pass.node_numbers);
    rest.whole_layers = std::move(pass.whole_layers);
  }
  pass = std::move(rest);
  // A view, for example of cat()'s gradient, would keep its whole base until its message is sent.
  for (auto& gradient : gradients) {
    if (nn::is_part_of_more(gradient)) gradient = gradient.clone();
  }
  return gradients;
}

nn::Values Stage::input_gradients(Pass& pass, BackwardPart part, const GradientRoots& roots) const {
  const nn::AutocastScope no_autocast(nn::AutocastState::off());
  const auto buffers = buffers_of(pass);
  if (part == BackwardPart::Inputs) {
    std::vector<torch::autograd::Edge> inputs(plan_.inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (pass.sink && pass.input_wants_gradient[i]) inputs[i] = pass.sink->edge(i);
    SplitBackward split = backward_to_inputs(roots, inputs, pass.recomputed_nodes);
    pass.weights = std::move(split.weights);
    for (const std::uint64_t node : split.whole)
      pass.whole_layers.push_back(layer_of_node(pass, node));
    return std::move(split.input_gradients);
  }
  if (!roots.edges.empty()) {
    OwnNewGradients new_gradients(modules_);
    torch::autograd::Engine::get_default_engine().execute(
        roots.edges, roots.gradients, /*keep_graph=*/false, /*create_graph=*/false,
        /*accumulate_grad=*/true);
    new_gradients.own();
  }
  nn::Values gradients(plan_.inputs.size());
  for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
    if (pass.sink && pass.input_wants_gradient[i]) gradients[i] = pass.sink->gradient(i);
  }
  return gradients;
}

void Stage::accumulate_weights(Pass& pass) const {
  OwnNewGradients new_gradients(modules_);
  const nn::AutocastScope no_autocast(nn::AutocastState::off());
  const auto buffers = buffers_of(pass);
  pass.weights->accumulate();
  new_gradients.own();
  pass = Pass();
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

std::optional<std::vector<Stage::OutputGradients::Need>> Stage::OutputGradients::find(
    std::uint64_t mode) {
  const std::lock_guard lock(mutex);
  const auto found = needs.find(mode);
  return found == needs.end() ? std::nullopt : std::optional(found->second);
}

void Stage::OutputGradients::add(std::uint64_t mode, const std::vector<bool>& wants_gradient,
                                 const std::vector<bool>& differentiable) {
  std::vector<Need> learned;
  for (std::size_t i = 0; i < wants_gradient.size(); ++i) {
    learned.push_back(!differentiable[i]  ? Need::Unknown
                      : wants_gradient[i] ? Need::Needed
                                          : Need::NotNeeded);
  }
  const std::lock_guard lock(mutex);
  needs[mode] = std::move(learned);
}

}  // namespace trestle::pipeline
