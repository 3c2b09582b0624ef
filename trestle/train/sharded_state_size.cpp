#include "trestle/train/sharded_state_size.h"

#include <algorithm>

#include "trestle/sharding/options/options.h"

namespace trestle::train {

// Each rank accumulates a step's gradients unsharded until its last backward. They are then reduced
// bucket by bucket in flat buffers, and each rank copies its shard out of them.
void size_sharded_state(const recipe::Recipe& recipe, Bytes trained, int states,
                        simulate::StageCost* cost) {
  if (recipe.mesh.parts() == 1) return;
  const std::string level = recipe.mesh.shard > 1 ? recipe.mesh.shard_level : "none";
  if (level == "none") {  // gradients of earlier batches of the step are kept apart
    cost->gradients += (recipe.train.accumulate > 1 ? 2 : 1) * trained;
    return;
  }
  const Bytes shard = (trained + recipe.mesh.shard - 1) / recipe.mesh.shard;
  cost->norm /= static_cast<double>(recipe.mesh.shard);
  cost->step /= static_cast<double>(recipe.mesh.shard);
  cost->persistent -= states * (trained - shard);
  if (level == "parameters") cost->persistent += shard;     // beside the unsharded ones
  const Bytes in_flight = 3 * ShardOptions().buckets.size;  // buckets of level gradients
  const Bytes flat = level == "gradients" ? std::min(trained, in_flight) : trained;
  cost->gradients += flat + 3 * shard;  // the reduced, the accumulated and the unflattened shard
}

OptimizerStepBytes bytes_during_optimizer_step(const recipe::Recipe& recipe, Bytes trained,
                                               Bytes largest) {
  if (recipe.mesh.shard == 1 || recipe.mesh.shard_level == "none") return {trained, largest};
  const auto shard_of = [&](Bytes bytes) {
    return (bytes + recipe.mesh.shard - 1) / recipe.mesh.shard;
  };
  return {recipe.mesh.shard_level == "optimizer_state" ? trained : shard_of(trained),
          shard_of(largest)};
}

}  // namespace trestle::train
