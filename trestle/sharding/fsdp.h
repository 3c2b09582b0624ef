#pragma once

#include "trestle/sharding/options/options.h"

namespace trestle {

// FSDP (Zhao et al. 2023), also known as ZeRO-3: each rank holds its shard of everything. The
// weights of one unit after the other are gathered where it runs: 16/N bytes per parameter on N
// ranks (fp32, Adam), and two units' weights and gradients besides. A rank sends 3 P bytes per
// step, or 2 P with reshard_after_forward = false, which keeps all weights between forward and
// backward. With reshard_after_forward = k, one P of the three moves among k neighbours alone.
//
//   trestle::DeviceMesh mesh(world, {{"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::fsdp());
//
// How it works:
// - engine/layer_units.cpp makes units of nn::Layers, engine/module_units.cpp of the Hooked modules
//   (hooks/hooked.h) in a torch module. unshard/unit_choice.cpp matches ShardOptions::units with
//   their names and types.
// - flat/group_builder.cpp flattens a unit's parameters into FlatParameterGroups and releases them.
//   flat/parameter_storage.cpp frees the memory; the parameters keep their tensor objects.
// - unshard/parameter_unsharder.cpp gathers a unit before its forward and before its backward, one
//   unit ahead, and releases it after. unshard/unit_order.cpp records the order of units, which
//   every step must repeat.
// - reduce/gradient_reducer.cpp follows the backward. A unit whose gradients are complete is
//   reduce-scattered by reduce/reduction_queue.cpp, during the backward.
// - flat/mixed_precision.cpp decides which parameters are gathered in another dtype.
// - Sharded::unshard() gathers all parameters at once (engine/unsharded_scope.h).
//   engine/full_state.cpp copies them out and in.
inline ShardOptions fsdp(ShardOptions options = {}) {
  options.level = ShardLevel::Parameters;
  return options;
}

}  // namespace trestle
