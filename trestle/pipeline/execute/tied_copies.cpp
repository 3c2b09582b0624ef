#include "trestle/pipeline/execute/tied_copies.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/snapshot.h"

namespace trestle::pipeline {
namespace {

bool belongs_to(const StageTie& tie, const nn::ParameterTie& use) {
  return std::any_of(tie.uses.begin(), tie.uses.end(), [&](const nn::ParameterTie& own) {
    return own.layer == use.layer && own.parameter == use.parameter;
  });
}

at::Tensor parameter_of(const nn::Graph& graph, int layer, const std::string& name) {
  return nn::find_parameter(*graph.layers[static_cast<std::size_t>(layer)].module.make(), name);
}

// Creates the layers of a chain of ties as long as it lives, those outside [first, last) alone.
class OwnersForNow {
 public:
  OwnersForNow(const nn::Graph& graph, const nn::ParameterTie& tie, int first, int last) {
    std::vector<int> chain = {tie.owner};
    for (std::size_t i = 0; i < chain.size(); ++i)
      for (const auto& other : graph.ties)
        if (other.layer == chain[i]) chain.push_back(other.owner);
    // The last owner first: creating a layer creates its owners.
    for (auto layer = chain.rbegin(); layer != chain.rend(); ++layer)
      if (*layer < first || *layer >= last)
        made_.push_back(graph.layers[static_cast<std::size_t>(*layer)].module.make_temporarily());
  }

 private:
  std::vector<std::shared_ptr<void>> made_;
};

at::Tensor leaf(at::Tensor tensor, bool trained) {
  tensor.set_requires_grad(trained);
  return tensor;
}

}  // namespace

void TiedCopies::make_layer(int layer, at::Device device) {
  const nn::Layer& own = graph_.layers[static_cast<std::size_t>(layer)];
  if (!own.module) return;
  for (const auto& use : graph_.ties) {
    if (use.layer != layer) continue;
    const auto tie = std::find_if(cut_.ties.begin(), cut_.ties.end(),
                                  [&](const StageTie& one) { return belongs_to(one, use); });
    if (tie != cut_.ties.end()) {
      give_copy(static_cast<int>(tie - cut_.ties.begin()), use, device);
      continue;
    }
    // An earlier pipeline may have given the layer a copy.
    const auto [owner, parameter] = nn::owner_of(graph_, use);
    own.module.make();
    own.module.replace_tied(use.parameter, parameter_of(graph_, owner, parameter));
  }
}

void TiedCopies::give_copy(int number, const nn::ParameterTie& use, at::Device device) {
  const StageTie& tie = cut_.ties[static_cast<std::size_t>(number)];
  const StagePlan& stage = cut_.stages[static_cast<std::size_t>(tie.route.to_stage)];
  const nn::LazyModule& module = graph_.layers[static_cast<std::size_t>(use.layer)].module;
  const auto made = graph_.layers[static_cast<std::size_t>(tie.owner)].module.made();
  const OwnersForNow owners(graph_, use, stage.first_layer, stage.last_layer);
  module.make();
  at::Tensor& copy = ends_[static_cast<std::size_t>(number)].copy;
  if (!copy.defined()) {
    // The owner's tensor, one that its temporary layer leaves, or an earlier pipeline's copy.
    copy = parameter_of(graph_, use.layer, use.parameter);
    const at::Tensor owner = made ? nn::find_parameter(*made, tie.parameter) : at::Tensor();
    const bool owner_is_in_place = tie.route.from_stage < tie.route.to_stage;
    // The owner in a chain of ties may be a layer with a copy of its own.
    const bool is_anothers = std::any_of(ends_.begin(), ends_.end(), [&](const Ends& other) {
      return &other.copy != &copy && other.copy.is_same(copy);
    });
    const bool may_share = owner.defined() && memory_ == Memory::Shared && owner_is_in_place &&
                           owner.device() == device;
    const at::Tensor source = owner.defined() ? owner : copy;
    if (may_share && (is_anothers || copy.is_same(owner) || !copy.is_alias_of(owner)))
      copy = leaf(owner.detach(), owner.requires_grad());
    else if (is_anothers || copy.is_same(owner) ||
             (!may_share && owner.defined() && copy.is_alias_of(owner)))
      copy = leaf(source.detach().to(device, /*non_blocking=*/false, /*copy=*/true),
                  source.requires_grad());
  }
  module.replace_tied(use.parameter, copy);
}

void TiedCopies::find_owners(const StageList& stages) {
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const StageTie& tie = cut_.ties[i];
    if (stages.has(tie.route.from_stage))
      ends_[i].owner = parameter_of(graph_, tie.owner, tie.parameter);
  }
}

at::Tensor TiedCopies::tensor_for(const nn::ParameterTie& use) const {
  for (std::size_t i = 0; i < ends_.size(); ++i)
    if (belongs_to(cut_.ties[i], use)) return ends_[i].copy;
  const auto [owner, parameter] = nn::owner_of(graph_, use);
  const auto module = graph_.layers[static_cast<std::size_t>(owner)].module.made();
  return module ? nn::find_parameter(*module, parameter) : at::Tensor();
}

void TiedCopies::put_in_place() const {
  for (const nn::ParameterTie& use : graph_.ties) {
    const nn::LazyModule& module = graph_.layers[static_cast<std::size_t>(use.layer)].module;
    const at::Tensor tensor = module.made() ? tensor_for(use) : at::Tensor();
    if (tensor.defined() && !nn::find_parameter(*module.made(), use.parameter).is_same(tensor))
      module.replace_tied(use.parameter, tensor);
  }
}

// The second entry reports whether the value may have changed.
Message TiedCopies::value(int tie, const at::Tensor& whole) {
  Ends& ends = ends_.at(static_cast<std::size_t>(tie));
  const std::uint32_t version = nn::version_of(ends.owner);
  const bool changed = !ends.was_sent || ends.version != version;
  ends.version = version;
  ends.was_sent = true;
  return {{.value = whole.detach(), .wants_gradient = ends.owner.requires_grad()},
          {.value = {}, .wants_gradient = changed}};
}

void TiedCopies::take_value(int tie, const Message& message, Use use) {
  const at::NoGradGuard no_grad;
  at::Tensor& copy = ends_.at(static_cast<std::size_t>(tie)).copy;
  const at::Tensor& value = message.at(0).value;
  if (use == Use::Training) copy.mutable_grad() = at::Tensor();  // of a step that failed
  if (copy.scalar_type() != value.scalar_type() || copy.sizes() != value.sizes()) {
    copy.set_data(value.to(copy.device(), /*non_blocking=*/false, /*copy=*/true));
  } else if (!copy.is_alias_of(value)) {
    // Without a change the copy keeps its version, so that a graph which saved it stays valid.
    at::Tensor memory = message.at(1).wants_gradient ? copy : copy.variable_data();
    memory.copy_(value);
  }
  if (copy.requires_grad() != message.at(0).wants_gradient)
    copy.set_requires_grad(message.at(0).wants_gradient);
}

Message TiedCopies::gradient(int tie) {
  const at::Tensor& copy = ends_.at(static_cast<std::size_t>(tie)).copy;
  const at::NoGradGuard no_grad;
  at::Tensor gradient = std::exchange(copy.mutable_grad(), at::Tensor());
  if (gradient.defined())
    gradient = gradient.layout() == at::kStrided ? gradient.detach() : gradient.to_dense();
  return {{.value = gradient}};
}

void TiedCopies::add_gradient(int tie, const Message& message) {
  const at::NoGradGuard no_grad;
  const at::Tensor& owner = ends_.at(static_cast<std::size_t>(tie)).owner;
  const at::Tensor& added = message.at(0).value;
  if (!added.defined() || !owner.requires_grad()) return;
  at::Tensor& sum = owner.mutable_grad();
  if (!sum.defined())
    sum = added;
  else if (sum.layout() == at::kStrided)
    sum.add_(added);
  else
    sum = added + sum;  // torch adds a sparse tensor to a dense one, in this order
}

}  // namespace trestle::pipeline
