#include "trestle/nn/layer.h"

#include <torch/nn/module.h>

#include "trestle/base/text.h"
#include "trestle/nn/held_slices.h"

namespace trestle::nn {

namespace {

template <class Items>
NamedTensors named(const Items& items) {
  NamedTensors result;
  for (const auto& item : items) result.emplace_back(item.key(), item.value());
  return result;
}

}  // namespace

NamedTensors Layer::named_parameters() const {
  if (!module) return {};
  NamedTensors all = named(module->named_parameters());
  for (const std::string& tied : module.tied_parameters()) {
    std::erase_if(all, [&](const auto& item) { return item.first == tied; });
  }
  return all;
}

NamedTensors Layer::named_buffers() const {
  return module ? named(module->named_buffers()) : NamedTensors();
}

std::vector<at::Tensor> Layer::parameters() const { return without_names(named_parameters()); }

std::vector<at::Tensor> Layer::buffers() const { return without_names(named_buffers()); }

ParameterSlices Layer::parameter_slices() const {
  if (!module) return {};
  ParameterSlices all = slices_held_by(*module.make());
  all.merge(module.slices());
  for (const std::string& tied : module.tied_parameters()) all.erase(tied);
  return all;
}

void Layer::to(at::Device device) const {
  if (!module) return;
  module->to(device);
  // torch leaves the gradients on the old device, and the next backward could not add to them.
  for (auto& parameter : module->parameters()) {
    if (parameter.defined() && parameter.grad().defined())
      parameter.mutable_grad() = parameter.grad().detach().to(device);
  }
}

void Layer::to(at::MemoryFormat format) const {
  if (!module || format == at::MemoryFormat::Preserve) return;
  for (auto& parameter : module->parameters()) {
    if (!parameter.defined() || parameter.dim() != 4) continue;
    parameter.set_data(parameter.detach().contiguous(format));
    if (parameter.grad().defined())
      parameter.mutable_grad() = parameter.grad().detach().contiguous(format);
  }
}

ParameterSlices slices_held_by(const torch::nn::Module& module) {
  ParameterSlices all;
  const auto add = [&](const torch::nn::Module& part, const std::string& prefix) {
    const auto* const sliced = dynamic_cast<const SlicedParameters*>(&part);
    if (sliced == nullptr) return;
    for (const auto& [name, slice] : sliced->parameter_slices()) all.emplace(prefix + name, slice);
  };
  add(module, "");
  for (const auto& part : module.named_modules("", /*include_self=*/false))
    add(*part.value(), part.key() + ".");
  return all;
}

std::string describe(const Values& values) {
  std::vector<std::string> words;
  for (const Value& value : values) {
    if (value.defined()) {
      words.push_back(text("[", join(value.sizes(), ", "), "] ", value.scalar_type()));
    } else {
      words.emplace_back("None");
    }
  }
  return words.empty() ? "none" : join(words, ", ");
}

}  // namespace trestle::nn
