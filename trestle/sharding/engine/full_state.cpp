#include "trestle/sharding/engine/full_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/flat/broadcast_tensors.h"

namespace trestle::sharding {
namespace {

NamedTensors parameters_and_buffers(const ShardEngine& engine) {
  NamedTensors all = engine.parameters();
  all.insert(all.end(), engine.buffers().begin(), engine.buffers().end());
  return all;
}

// Throws UsageError that lists all differences.
void check_fits(const NamedTensors& own, const std::map<std::string, at::Tensor>& given) {
  std::vector<std::string> missing, wrong;
  std::set<std::string> known;
  for (const auto& [name, tensor] : own) {
    known.insert(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.push_back("'" + name + "'");
    } else if (!found->second.defined() || found->second.is_complex() > tensor.is_complex()) {
      wrong.push_back(
          text("'", name, "' is ", found->second.defined() ? "complex" : "not a tensor"));
    } else if (found->second.sizes() != tensor.sizes()) {
      wrong.push_back(text("'", name, "' is [", join(found->second.sizes(), ", "),
                           "], the model's is [", join(tensor.sizes(), ", "), "]"));
    }
  }
  for (const auto& [name, tensor] : given)
    if (!known.contains(name)) wrong.push_back("the model has no '" + name + "'");
  if (!missing.empty()) wrong.push_back("missing: " + join(missing, ", "));
  if (!wrong.empty()) throw UsageError("the state does not fit the model: " + join(wrong, "; "));
}

}  // namespace

NamedTensors full_state(ShardEngine& engine) {
  for (const auto& group : engine.groups()) group->take_back();
  std::map<std::string, at::Tensor> whole;
  if (engine.options().level != ShardLevel::None)
    for (const auto& group : engine.groups())
      for (auto& [name, tensor] : group->whole(engine.ranks().gathers)) whole[name] = tensor;
  NamedTensors all;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = whole.find(name);
    all.emplace_back(name, found != whole.end()
                               ? found->second
                               : tensor.detach().to(at::kCPU, tensor.scalar_type(),
                                                    /*non_blocking=*/false, /*copy=*/true));
  };
  for (const auto& [name, tensor] : engine.parameters()) add(name, tensor);
  // Each rank's buffers saw its own samples. The next forward begins with rank 0's.
  NamedTensors buffers;
  for (const auto& [name, tensor] : engine.buffers())
    buffers.emplace_back(name, tensor.detach().clone());
  if (engine.options().broadcast.buffers)
    broadcast_tensors(engine.ranks().all, without_names(buffers));
  for (const auto& [name, tensor] : buffers) add(name, tensor);
  return all;
}

void load_full_state(ShardEngine& engine, const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> given(state.begin(), state.end());
  const NamedTensors own = parameters_and_buffers(engine);
  check_fits(own, given);
  std::set<std::string> done;
  if (engine.options().level != ShardLevel::None) {
    for (const auto& group : engine.groups()) {
      std::vector<at::Tensor> whole;
      for (const auto& [name, tensor] : group->parameters()) {
        whole.push_back(given.at(name));
        done.insert(name);
      }
      group->set_shard(whole);
    }
  }
  for (const auto& [name, tensor] : own)
    if (!done.contains(name)) tensor.detach().copy_(given.at(name));
  engine.shards_changed();
}

}  // namespace trestle::sharding
