#include "trestle/nn/layers.h"

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/nn/resolve_graph.h"

namespace trestle::nn {

namespace {

// A child of a torch::nn::Sequential has no static type: its result is known only after a call.
Layer any_layer(std::string name, torch::nn::AnyModule module) {
  std::shared_ptr<torch::nn::Module> pointer = module.ptr();
  auto call = [name, module = std::move(module)](const Values& values) mutable -> Values {
    torch::nn::AnyValue output = module.any_forward(values.at(0));
    if (at::Tensor* tensor = output.try_get<at::Tensor>()) return {std::move(*tensor)};
    throw UsageError(text("child '", name, "' of a torch::nn::Sequential returns ",
                          c10::demangle(output.type_info().name()), ", not one tensor"),
                     {.hint = "Add it with Layers::add(name, module), where its type is known."});
  };
  return {std::move(name), std::move(pointer), std::move(call), 1, 1, 1};
}

}  // namespace

struct Layers::State {
  std::vector<Entry> entries;
  std::vector<std::string> returned;   // full names, after the last layer's outputs
  std::vector<std::string> lane_taps;  // extra outputs of a nested model, for the next layer
  std::vector<ParameterTie> ties;
  int inputs = 1;
  std::optional<Seed> seed;  // if empty: an outer model's seed, or 0
};

Layers::Layers() : Layers(1) {}

Layers::Layers(int inputs) : state_(std::make_shared<State>()) {
  if (inputs < 1) throw UsageError(text("a model takes at least 1 input tensor, not ", inputs));
  state_->inputs = inputs;
}

Layers::Layers(Seed seed, int inputs) : Layers(inputs) { state_->seed = seed; }

Layers::Layers(const torch::nn::Sequential& sequential) : Layers() {
  const auto names = sequential->named_children().keys();
  std::size_t child = 0;
  for (auto module = sequential->begin(); module != sequential->end(); ++module) {
    append(any_layer(names.at(child++), *module));
  }
}

Layers::State& Layers::state() {
  if (state_.use_count() > 1) state_ = std::make_shared<State>(*state_);
  return *state_;
}

Layers::Added Layers::append(Layer layer) {
  State& s = state();
  layer.module.set_key(s.seed.value_or(Seed()).value, layer.name);
  s.entries.push_back({.layer = std::move(layer)});
  s.entries.back().taken = std::exchange(s.lane_taps, {});
  return {*this, s.entries.size() - 1, s.entries.size() - 1};
}

Layers::Added Layers::add(std::string name, const Layers& nested) {
  const std::shared_ptr<const State> inner = nested.state_;  // nested may be *this
  if (inner->entries.empty()) throw UsageError(text("the nested model '", name, "' has no layers"));
  const std::string prefix = name + ".";
  State& s = state();
  const std::size_t first = s.entries.size();
  for (Entry entry : inner->entries) {
    entry.layer.name = prefix + entry.layer.name;
    if (!entry.seed) entry.seed = inner->seed;
    entry.layer.module.set_key(entry.seed.value_or(s.seed.value_or(Seed())).value,
                               entry.layer.name);
    for (Tap& tap : entry.kept) tap.name = prefix + tap.name;
    for (std::string& taken : entry.taken) taken = prefix + taken;
    s.entries.push_back(std::move(entry));
  }
  for (ParameterTie tie : inner->ties) {
    tie.layer += static_cast<int>(first);
    tie.owner += static_cast<int>(first);
    s.ties.push_back(std::move(tie));
  }
  // Pending extra outputs become arguments of the first nested layer. The nested model's own extra
  // outputs wait for the next layer.
  std::vector<std::string>& taken = s.entries[first].taken;
  const std::vector<std::string> waiting = std::exchange(s.lane_taps, {});
  taken.insert(taken.begin(), waiting.begin(), waiting.end());
  for (const std::string& returned : inner->returned) s.lane_taps.push_back(prefix + returned);
  for (const std::string& waits : inner->lane_taps) s.lane_taps.push_back(prefix + waits);
  return {*this, first, s.entries.size() - 1};
}

Layers::Added Layers::add(std::string name, const torch::nn::Sequential& sequential) {
  return add(std::move(name), Layers(sequential));
}

Layers::Added& Layers::Added::keep_output(std::string name, int output) {
  // A negative number would mean "the input": it stays wrong, and is reported with other mistakes.
  layers_->state().entries[last_].kept.push_back(
      {std::move(name), output == kept_input ? -2 : output});
  return *this;
}

Layers::Added& Layers::Added::keep_input(std::string name) {
  layers_->state().entries[first_].kept.push_back({std::move(name), kept_input});
  return *this;
}

Layers::Added& Layers::Added::take(std::string name) {
  layers_->state().entries[first_].taken.push_back(std::move(name));
  return *this;
}

Layers::Added& Layers::Added::pass_on(std::vector<int> outputs) {
  layers_->state().entries[last_].passed_on = std::move(outputs);
  return *this;
}

Layers& Layers::also_return(std::string name) {
  state().returned.push_back(std::move(name));
  return *this;
}

Graph Layers::graph() const {
  std::vector<std::string> returned = state_->lane_taps;
  returned.insert(returned.end(), state_->returned.begin(), state_->returned.end());
  Graph resolved = resolve(state_->entries, state_->inputs, returned);
  resolved.ties = state_->ties;
  return resolved;
}

namespace {

// "head.weight" -> the layer "head" and "weight". Layers' names may have dots: the longest match
// wins.
std::pair<int, std::string> find_owner(const std::vector<Entry>& entries, const std::string& name) {
  std::pair<int, std::string> found = {-1, ""};
  std::size_t longest = 0;
  std::vector<std::string> candidates;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string prefix = entries[i].layer.name + ".";
    candidates.push_back(entries[i].layer.name);
    if (!name.starts_with(prefix) || prefix.size() <= longest) continue;
    longest = prefix.size();
    found = {static_cast<int>(i), name.substr(longest)};
  }
  if (found.first >= 0) return found;
  const std::string close = nearest(name.substr(0, name.rfind('.')), candidates);
  throw UsageError(text("tie(): no layer has a parameter '", name, "'",
                        close.empty() ? "" : "; did you mean one of '" + close + "'?"),
                   {.hint = "A parameter's name is '<layer>.<parameter>', and the layer must have "
                            "been added."});
}

}  // namespace

Layers& Layers::tie(const std::string& parameter, const std::string& owner,
                    FindMember find_member) {
  State& s = state();
  const auto [layer, own_name] = find_owner(s.entries, parameter);
  const auto [from, from_name] = find_owner(s.entries, owner);
  try {
    s.entries[layer].layer.module.add_tie(
        {own_name, s.entries[from].layer.module, from_name, std::move(find_member)});
  } catch (...) {
    rethrow_with_context(text("while tying '", parameter, "' to '", owner, "'"));
  }
  s.ties.push_back({layer, own_name, from, from_name});
  return *this;
}

Values Layers::forward(const Values& inputs) const {
  const Graph resolved = graph();
  tie_again(resolved);
  return run(resolved, inputs);
}

at::Tensor Layers::forward(const at::Tensor& input) const {
  const Graph resolved = graph();
  if (resolved.inputs != 1 || resolved.outputs != 1) {
    throw UsageError(
        text("the model takes ", resolved.inputs, " tensor(s) and returns ", resolved.outputs),
        {.hint = "Call forward() with a std::vector of tensors."});
  }
  tie_again(resolved);
  return run(resolved, {input})[0];
}

std::size_t Layers::size() const { return state_->entries.size(); }

namespace {

// The tensors of all layers, named "<layer>.<name>".
template <class Get>
NamedTensors named_of(const std::vector<Entry>& entries, Get get) {
  NamedTensors all;
  for (const Entry& entry : entries) {
    for (auto& [name, tensor] : get(entry.layer)) {
      all.emplace_back(entry.layer.name + "." + name, std::move(tensor));
    }
  }
  return all;
}

}  // namespace

NamedTensors Layers::named_parameters() const {
  return named_of(state_->entries, [](const Layer& layer) { return layer.named_parameters(); });
}

NamedTensors Layers::named_buffers() const {
  return named_of(state_->entries, [](const Layer& layer) { return layer.named_buffers(); });
}

std::vector<at::Tensor> Layers::parameters() const { return without_names(named_parameters()); }

std::int64_t Layers::parameter_count() const {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

void Layers::train() {
  for (const Entry& entry : state_->entries) entry.layer.module.train();
}

void Layers::eval() {
  for (const Entry& entry : state_->entries) entry.layer.module.eval();
}

void Layers::to(at::Device device) {
  for (const Entry& entry : state_->entries) entry.layer.to(device);
}

void Layers::zero_grad() {
  for (const Entry& entry : state_->entries) {
    if (const auto module = entry.layer.module.made()) module->zero_grad();
  }
}

}  // namespace trestle::nn
