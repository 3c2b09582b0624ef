#include "trestle/nn/detail/tied_parameters.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <utility>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/weight_kernel.h"

namespace trestle::nn {

namespace {

// torch::nn::Module returns copies of its registered tensors; this finds the originals.
struct Registered : torch::nn::Module {
  static at::Tensor* find(torch::nn::Module& owner, const std::string& name) {
    return (owner.*(&Registered::parameters_)).find(name);
  }
};

template <class Impl>
at::Tensor* weight_of(torch::nn::Module& module) {
  auto* typed = dynamic_cast<Impl*>(&module);
  return typed ? &typed->weight : nullptr;
}

template <class Impl>
at::Tensor* bias_of(torch::nn::Module& module) {
  auto* typed = dynamic_cast<Impl*>(&module);
  return typed ? &typed->bias : nullptr;
}

template <class... Impls>
at::Tensor* first_weight_of(torch::nn::Module& module) {
  at::Tensor* found = nullptr;
  ((found = found ? found : weight_of<Impls>(module)), ...);
  return found;
}

template <class... Impls>
at::Tensor* first_bias_of(torch::nn::Module& module) {
  at::Tensor* found = nullptr;
  ((found = found ? found : bias_of<Impls>(module)), ...);
  return found;
}

at::Tensor* member_of_torchs_layers(torch::nn::Module& owner, const std::string& name) {
  using namespace torch::nn;
  if (name == "weight") {
    return first_weight_of<LinearImpl, EmbeddingImpl, EmbeddingBagImpl, BilinearImpl, Conv1dImpl,
                           Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                           ConvTranspose3dImpl, LayerNormImpl, GroupNormImpl, BatchNorm1dImpl,
                           BatchNorm2dImpl, BatchNorm3dImpl>(owner);
  }
  if (name == "bias") {
    return first_bias_of<LinearImpl, BilinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl,
                         ConvTranspose1dImpl, ConvTranspose2dImpl, ConvTranspose3dImpl,
                         LayerNormImpl, GroupNormImpl, BatchNorm1dImpl, BatchNorm2dImpl,
                         BatchNorm3dImpl>(owner);
  }
  return nullptr;
}

// The module or submodule that owns a parameter, and the parameter's name there.
std::pair<torch::nn::Module*, std::string> owner_of(torch::nn::Module& module,
                                                    const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) return {&module, name};
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.key() == name.substr(0, dot)) return {item.value().get(), name.substr(dot + 1)};
  }
  return {nullptr, ""};
}

[[noreturn]] void throw_unknown(const torch::nn::Module& module, const std::string& name) {
  const std::vector<std::string> names = module.named_parameters().keys();
  throw UsageError(text("there is no parameter '", name, "'", did_you_mean(name, names)),
                   {.hint = names.empty() ? "The layer has no parameters."
                                          : "The layer's parameters: " + join(names, ", ") + "."});
}

}  // namespace

at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name) {
  const auto parameters = module.named_parameters();
  const at::Tensor* found = parameters.find(name);
  if (!found) throw_unknown(module, name);
  return *found;
}

namespace {

// The two places in which a module keeps a parameter.
struct Places {
  at::Tensor* registered;
  at::Tensor* member;  // null if the module has no member for it

  void set(const at::Tensor& tensor) const {
    *registered = tensor;
    if (member) *member = tensor;
  }
};

Places find_places(torch::nn::Module& module, const std::string& name,
                   const FindMember& find_member) {
  const auto [owner, leaf] = owner_of(module, name);
  at::Tensor* const registered = owner ? Registered::find(*owner, leaf) : nullptr;
  if (!registered) throw_unknown(module, name);
  at::Tensor* member = find_member ? find_member(*owner) : nullptr;
  if (!member) member = member_of_torchs_layers(*owner, leaf);
  if (member && !member->is_same(*registered)) member = nullptr;
  return {registered, member};
}

}  // namespace

void replace_parameter(torch::nn::Module& module, const std::string& name, const at::Tensor& source,
                       const FindMember& find_member) {
  const Places places = find_places(module, name, find_member);
  if (places.registered->is_same(source)) return;
  // Another type or device is not a mistake: the model may be in the middle of a conversion.
  if (places.registered->sizes() != source.sizes()) {
    throw UsageError(text("'", name, "' has shape [", join(places.registered->sizes(), ", "),
                          "], but is tied to a parameter of shape [", join(source.sizes(), ", "),
                          "]"));
  }
  device::copy_weight_kernels(*places.registered, source);
  const at::Tensor old = *places.registered;
  places.set(source);
  if (old.use_count() == 1) return;
  places.set(old);
  throw UsageError(text("'", name, "' is still referenced elsewhere ",
                        places.member ? "" : "(by its module's own member) ",
                        "and would keep its old value there"),
                   {.hint = "Give the module's member, as in tie(\"head.table\", \"embed.weight\", "
                            "&HeadImpl::table), and give the layer as a factory."});
}

void replace_again(torch::nn::Module& module, const std::string& name, const at::Tensor& source,
                   const FindMember& find_member) {
  const Places places = find_places(module, name, find_member);
  device::copy_weight_kernels(*places.registered, source);
  places.set(source);
}

}  // namespace trestle::nn
