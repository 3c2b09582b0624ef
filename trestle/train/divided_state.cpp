#include "trestle/train/divided_state.h"

#include <algorithm>

#include "trestle/sharding/options.h"

namespace trestle::train {

// The gradients of a step add up whole on each rank until its last backward. There they go bucket by bucket into the flat
// buffers in which they are reduced, and from these into the ranks' parts.
void divide_state(const recipe::Recipe& recipe, Bytes trained, int states,
                  simulate::StageCost* cost) {
  if (recipe.mesh.parts() == 1) return;
  const bool divides = recipe.mesh.shard > 1;
  const std::string level = divides ? recipe.mesh.shard_level : "none";
  if (level == "none") {  // besides, those of a step's earlier batches are set aside
    cost->gradients += (recipe.train.accumulate > 1 ? 2 : 1) * trained;
    return;
  }
  const Bytes part = (trained + recipe.mesh.shard - 1) / recipe.mesh.shard;
  cost->persistent -= states * (trained - part);
  if (level == "parameters") cost->persistent += part;      // beside the gathered ones
  const Bytes under_way = 3 * ShardOptions().buckets.size;  // buckets of level gradients
  const Bytes flat = level == "gradients" ? std::min(trained, under_way) : trained;
  cost->gradients +=
      flat + 3 * part;  // of what is reduced, of the sum, and what is put together anew
}

StepState state_of_step(const recipe::Recipe& recipe, Bytes trained, Bytes largest) {
  if (recipe.mesh.shard == 1 || recipe.mesh.shard_level == "none") return {trained, largest};
  const auto part = [&](Bytes bytes) {
    return (bytes + recipe.mesh.shard - 1) / recipe.mesh.shard;
  };
  return {recipe.mesh.shard_level == "optimizer_state" ? trained : part(trained), part(largest)};
}

}  // namespace trestle::train
