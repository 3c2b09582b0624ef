#include "trestle/nn/snapshot.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/boundary.h"

namespace trestle::nn {
namespace {

// Comparing on a GPU would stall its stream: there each snapshot has separate copies.
bool same_value(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && !a.is_cuda() && a.sizes() == b.sizes() && a.dtype() == b.dtype() &&
         at::equal(a, b);
}

void set_trained(const ModuleState& state, const std::vector<bool>& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    at::Tensor parameter = state.parameters[i].second;
    if (parameter.requires_grad() != flags[i]) parameter.requires_grad_(flags[i]);
  }
}

void set_training(const ModuleState& state, const std::vector<bool>& flags) {
  // train() also sets the children; they come later in the list, so their own value wins.
  for (std::size_t i = 0; i < flags.size(); ++i) state.modules[i]->train(flags[i]);
}

void check_parameters(const ModuleState& state, const std::vector<std::uint32_t>& versions) {
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const auto& [name, parameter] = state.parameters[i];
    if (version_of(parameter) == versions[i]) continue;
    throw StateError(
        text("parameter '", name, "' was changed in place between forward and backward (version ",
             versions[i], " then, ", version_of(parameter),
             " now), but its layer must be recomputed"),
        {.hint =
             "Call the optimizer's step() after backward(), and forward() again before the next "
             "backward()."});
  }
}

}  // namespace

ModuleState ModuleState::of(const Graph& graph, int first, int last) {
  ModuleState state;
  std::set<const void*> seen;
  for (int i = first; i < last; ++i) {
    const auto& layer = graph.layers[static_cast<std::size_t>(i)];
    if (!layer.module) continue;
    for (auto& module : layer.module->modules()) {
      if (seen.insert(module.get()).second) state.modules.push_back(module);
    }
    for (const auto& item : layer.module->named_parameters()) {
      if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
        continue;
      state.parameters.emplace_back(layer.name + "." + item.key(), item.value());
    }
    for (const auto& buffer : layer.module->buffers()) {
      // A norm layer that does not track its statistics has undefined buffers.
      if (buffer.defined() && seen.insert(buffer.unsafeGetTensorImpl()).second)
        state.buffers.push_back(buffer);
    }
  }
  return state;
}

std::vector<bool> ModuleState::training_flags() const {
  std::vector<bool> flags;
  flags.reserve(modules.size());
  for (const auto& module : modules) flags.push_back(module->is_training());
  return flags;
}

std::vector<bool> ModuleState::trained_flags() const {
  std::vector<bool> flags;
  flags.reserve(parameters.size());
  for (const auto& [name, parameter] : parameters) flags.push_back(parameter.requires_grad());
  return flags;
}

const std::vector<at::Tensor>& BufferCopies::take(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  latest_.resize(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!same_value(latest_[i], buffers[i])) latest_[i] = buffers[i].detach().clone();
  }
  return latest_;
}

Snapshot::Snapshot(const ModuleState& state, BufferCopies& copies, const RunKey& key)
    : key_(key),
      autocast_(AutocastState::current()),
      training_(state.training_flags()),
      trained_(state.trained_flags()),
      buffers_(copies.take(state.buffers)) {}

void Snapshot::note_parameters(const ModuleState& state) {
  versions_.clear();
  for (const auto& [name, parameter] : state.parameters) versions_.push_back(version_of(parameter));
}

Snapshot::Again::Again(const Snapshot& snapshot, const ModuleState& state)
    : state_(state), autocast_(snapshot.autocast_) {
  check_parameters(state, snapshot.versions_);
  if (auto flags = state.training_flags(); flags != snapshot.training_) {
    set_training(state, snapshot.training_);
    training_before_ = std::move(flags);
  }
  if (auto flags = state.trained_flags(); flags != snapshot.trained_) {
    set_trained(state, snapshot.trained_);
    trained_before_ = std::move(flags);
  }
}

Snapshot::Again::~Again() {
  set_training(state_, training_before_);
  set_trained(state_, trained_before_);
}

}  // namespace trestle::nn
