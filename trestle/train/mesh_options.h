#pragma once

#include "trestle/parallel/parallelize.h"
#include "trestle/recipe/recipe.h"
#include "trestle/sharding/options/options.h"

// [mesh] as options of the sharding engine. Inside of the trainer. Not installed.
namespace trestle::train {

// Throws UsageError where the ranks cannot be laid out as [mesh] describes.
void check_mesh(const recipe::Recipe::Mesh& mesh, int ranks);
// Throws UsageError where there is neither one device for all ranks nor one for each.
void check_device_count(std::int64_t devices, int ranks);

// Sets units, resharding and offload.
void set_sharding(const recipe::Recipe::Mesh& mesh, ShardOptions* options);
StageUnits stage_units_of(const recipe::Recipe::Mesh& mesh);
// For gradients of `trained` bytes on a rank.
ShardBuckets buckets_of(const recipe::Recipe::Mesh& mesh, Bytes trained);

}  // namespace trestle::train
