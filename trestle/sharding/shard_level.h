#pragma once

#include <string_view>

namespace trestle {

// What of a model's training state is divided over the ranks that share it, instead of being whole
// on each. The names of the field: DistributedDataParallel, ZeRO-1, ZeRO-2 and ZeRO-3 or FSDP
// (Rajbhandari et al. 2020; Zhao et al. 2023); with a second dimension of the mesh that replicates,
// HSDP. Each level divides what those above it do, too.
enum class ShardLevel {
  None,            // nothing: gradients are summed over the ranks
  OptimizerState,  // what the optimizer remembers: each rank steps its part of every parameter
  Gradients,       // gradients too: the full ones are let go as soon as they are reduced
  Parameters,      // parameters too: a unit's are put together where it runs, and let go again
};

constexpr std::string_view to_string(ShardLevel level) {
  constexpr std::string_view names[] = {"none", "optimizer_state", "gradients", "parameters"};
  return names[static_cast<int>(level)];
}

}  // namespace trestle
