#pragma once

#include <string_view>

namespace trestle {

// Which part of a model's training state is sharded over ranks, instead of whole on each. Each
// level also shards what the levels above it do. The levels are DistributedDataParallel, ZeRO-1,
// ZeRO-2, and ZeRO-3 or FSDP (Rajbhandari et al. 2020; Zhao et al. 2023). A mesh with a second
// dimension that replicates makes HSDP of the last one.
enum class ShardLevel {
  None,            // nothing: gradients are all-reduced
  OptimizerState,  // the optimizer's state: each rank steps its shard of every parameter
  Gradients,       // gradients: whole ones are freed after their reduction
  Parameters,      // parameters: a unit's are gathered where it runs, and released again
};

constexpr std::string_view to_string(ShardLevel level) {
  constexpr std::string_view names[] = {"none", "optimizer_state", "gradients", "parameters"};
  return names[static_cast<int>(level)];
}

}  // namespace trestle
