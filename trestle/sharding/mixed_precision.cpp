// What of a sharded model is computed in which dtype.
#include "trestle/sharding/mixed_precision.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/sharded_impl.h"

namespace trestle {
namespace sharding {

void check_dtypes(const ShardPrecision& precision) {
  const auto check = [](const char* what, const std::optional<at::ScalarType>& dtype) {
    if (!dtype || *dtype == at::kBFloat16 || *dtype == at::kHalf || *dtype == at::kFloat ||
        *dtype == at::kDouble)
      return;
    throw UsageError(text("precision.", what, " = ", toString(*dtype)),
                     {.hint = "Known are Half, BFloat16, Float and Double."});
  };
  check("parameters", precision.parameters);
  check("reduce", precision.reduce);
  check("output", precision.output);
}

}  // namespace sharding

namespace {

bool is_part_of(const std::string& name, const std::string& whole) {
  return name.starts_with(whole) && (name.size() == whole.size() || name[whole.size()] == '.');
}

bool is_in(const std::string& name, const std::vector<std::string>& keep) {
  return std::any_of(keep.begin(), keep.end(),
                     [&](const std::string& whole) { return is_part_of(name, whole); });
}

}  // namespace

void Sharded::Impl::note_kept(const torch::nn::Module& module, const std::string& name) {
  if (!options.precision.parameters) return;
  for (const auto& part : module.named_modules(name, /*include_self=*/true)) {
    const auto buffers = part.value()->buffers(/*recurse=*/false);
    const bool has_statistics = std::any_of(
        buffers.begin(), buffers.end(),
        [](const at::Tensor& buffer) { return buffer.defined() && buffer.is_floating_point(); });
    for (const auto& own : part.value()->named_parameters(/*recurse=*/false)) {
      const std::string full = part.key().empty() ? own.key() : part.key() + "." + own.key();
      if (has_statistics || !own.value().is_floating_point() || is_in(full, options.precision.keep))
        kept_.insert(own.value().unsafeGetTensorImpl());
    }
  }
}

void Sharded::Impl::check_kept_names() const {
  for (const std::string& name : options.precision.keep) {
    const auto is_it = [&](const auto& named) { return is_part_of(named.first, name); };
    if (!options.precision.parameters)
      throw UsageError("precision.keep is of layers that are not computed in precision.parameters",
                       {.hint = "Give precision.parameters too."});
    if (std::none_of(parameters_.begin(), parameters_.end(), is_it))
      throw UsageError(text("precision.keep names '", name,
                            "', and no parameter is in a layer of "
                            "that name"));
  }
}

std::shared_ptr<sharding::FlatParameterGroup> Sharded::Impl::make_group(NamedTensors members,
                                                                        bool trained) const {
  ShardOptions own = options;
  if (is_kept(members.at(0).second)) own.precision.parameters.reset();
  const bool shards = options.level != ShardLevel::None;
  return std::make_shared<sharding::FlatParameterGroup>(std::move(members), trained,
                                                        shards ? ranks_.shard.size() : 1,
                                                        shards ? ranks_.shard.rank() : 0, own);
}

// Levels between None and Parameters: frozen parameters are computed in another dtype as well.
void Sharded::Impl::make_frozen_groups() {
  if (!options.precision.parameters) return;
  std::vector<NamedTensors> kinds;
  for (const auto& member : parameters_) {
    if (member.second.requires_grad() || is_kept(member.second)) continue;
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const NamedTensors& known) {
      return known[0].second.options().type_equal(member.second.options()) &&
             known[0].second.device() == member.second.device();
    });
    if (found == kinds.end())
      kinds.push_back({member});
    else
      found->push_back(member);
  }
  for (NamedTensors& members : kinds) groups_.push_back(make_group(std::move(members), false));
}

// Each layer's inputs in the dtype in which it computes, where some layers keep theirs; after flattening, which casts
// parameters. The graph's own copies of the layers' functions: the model itself stays as it is.
void Sharded::Impl::cast_inputs_of_layers() {
  if (options.precision.keep.empty() || !options.precision.parameters) return;
  for (nn::Layer& layer : graph_.layers) {
    if (!layer.module) continue;
    std::optional<at::ScalarType> dtype;
    for (const auto& [name, parameter] : layer.named_parameters())
      if (parameter.is_floating_point() && (!dtype || !is_kept(parameter)))
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

}  // namespace trestle
