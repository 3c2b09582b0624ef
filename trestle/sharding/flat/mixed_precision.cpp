#include "trestle/sharding/flat/mixed_precision.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

void check_dtype(const char* field, const std::optional<at::ScalarType>& dtype) {
  if (!dtype || *dtype == at::kBFloat16 || *dtype == at::kHalf || *dtype == at::kFloat ||
      *dtype == at::kDouble)
    return;
  throw UsageError(text("precision.", field, " = ", toString(*dtype)),
                   {.hint = "Known are Half, BFloat16, Float and Double."});
}

bool is_name_or_child(const std::string& name, const std::string& layer) {
  return name.starts_with(layer) && (name.size() == layer.size() || name[layer.size()] == '.');
}

bool is_in_layers(const std::string& name, const std::vector<std::string>& layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [&](const std::string& layer) { return is_name_or_child(name, layer); });
}

}  // namespace

MixedPrecision::MixedPrecision(const ShardPrecision& options) : options_(options) {
  check_dtype("parameters", options.parameters);
  check_dtype("reduce", options.reduce);
  check_dtype("output", options.output);
}

void MixedPrecision::add_module(const torch::nn::Module& module, const std::string& name) {
  if (!options_.parameters) return;
  for (const auto& child : module.named_modules(name, /*include_self=*/true)) {
    const auto buffers = child.value()->buffers(/*recurse=*/false);
    const bool has_statistics = std::any_of(
        buffers.begin(), buffers.end(),
        [](const at::Tensor& buffer) { return buffer.defined() && buffer.is_floating_point(); });
    for (const auto& own : child.value()->named_parameters(/*recurse=*/false)) {
      const std::string full = child.key().empty() ? own.key() : child.key() + "." + own.key();
      if (has_statistics || !own.value().is_floating_point() || is_in_layers(full, options_.keep))
        kept_.insert(own.value().unsafeGetTensorImpl());
    }
  }
}

bool MixedPrecision::keeps_dtype(const at::Tensor& parameter) const {
  return kept_.contains(parameter.unsafeGetTensorImpl());
}

void MixedPrecision::check_names(const NamedTensors& parameters) const {
  for (const std::string& name : options_.keep) {
    if (!options_.parameters)
      throw UsageError("precision.keep without precision.parameters",
                       {.hint = "Set precision.parameters too."});
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const auto& named) { return is_name_or_child(named.first, name); }))
      throw UsageError(
          text("precision.keep names '", name, "', but no layer of that name has parameters"));
  }
}

at::Tensor MixedPrecision::cast_input(const at::Tensor& input) const {
  if (!options_.parameters || !options_.cast_inputs || !input.defined() ||
      !input.is_floating_point())
    return input;
  return input.to(*options_.parameters);
}

at::Tensor MixedPrecision::cast_output(const at::Tensor& output) const {
  return options_.output && output.is_floating_point() ? output.to(*options_.output) : output;
}

void MixedPrecision::cast_inputs_of_layers(nn::Graph& graph) const {
  if (options_.keep.empty() || !options_.parameters) return;
  for (nn::Layer& layer : graph.layers) {
    if (!layer.module) continue;
    std::optional<at::ScalarType> dtype;
    for (const auto& [name, parameter] : layer.named_parameters())
      if (parameter.is_floating_point() && (!dtype || !keeps_dtype(parameter)))
        dtype = parameter.scalar_type();
    if (!dtype) continue;
    layer.forward = [dtype = *dtype, inner = std::move(layer.forward)](const nn::Values& given) {
      nn::Values inputs = given;
      for (at::Tensor& input : inputs)
        if (input.defined() && input.is_floating_point()) input = input.to(dtype);
      return inner(inputs);
    };
  }
}

}  // namespace trestle::sharding
