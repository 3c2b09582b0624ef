// All of a sharded model's tensors, whole, out and in.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/replicas.h"
#include "trestle/sharding/sharded_impl.h"

namespace trestle {

NamedTensors Sharded::Impl::state() {
  for (const auto& group : groups_) group->take_back();
  std::map<std::string, at::Tensor> whole;
  if (options.level != ShardLevel::None)
    for (const auto& group : groups_)
      for (auto& [name, tensor] : group->whole(ranks_.gathers)) whole[name] = tensor;
  NamedTensors all;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = whole.find(name);
    all.emplace_back(name, found != whole.end()
                               ? found->second
                               : tensor.detach().to(at::kCPU, tensor.scalar_type(),
                                                    /*non_blocking=*/false, /*copy=*/true));
  };
  for (const auto& [name, tensor] : parameters_) add(name, tensor);
  // Each rank's own have seen its own part of the last batch; the next forward begins with rank 0's.
  NamedTensors buffers;
  for (const auto& [name, tensor] : buffers_) buffers.emplace_back(name, tensor.detach().clone());
  if (options.broadcast_buffers) sharding::broadcast(ranks_.all, without_names(buffers));
  for (const auto& [name, tensor] : buffers) add(name, tensor);
  return all;
}

void Sharded::Impl::load_state(const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  std::vector<std::string> missing, wrong;
  NamedTensors own = parameters_;
  own.insert(own.end(), buffers_.begin(), buffers_.end());
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.push_back("'" + name + "'");
    } else if (!found->second.defined() || found->second.is_complex() > tensor.is_complex()) {
      wrong.push_back(text("'", name, "' is ", found->second.defined() ? "complex" : "no tensor"));
    } else if (found->second.sizes() != tensor.sizes()) {
      wrong.push_back(text("'", name, "' is [", join(found->second.sizes(), ", "),
                           "], the model's is [", join(tensor.sizes(), ", "), "]"));
    }
  }
  for (const auto& [name, tensor] : state)
    if (std::none_of(own.begin(), own.end(),
                     [&](const auto& named) { return named.first == name; }))
      wrong.push_back("'" + name + "' is not the model's");
  if (!missing.empty()) wrong.push_back("missing: " + join(missing, ", "));
  if (!wrong.empty()) throw UsageError("state does not fit the model: " + join(wrong, "; "));
  std::set<std::string> done;
  if (options.level != ShardLevel::None) {
    for (const auto& group : groups_) {
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
  shards_changed();
}

}  // namespace trestle
