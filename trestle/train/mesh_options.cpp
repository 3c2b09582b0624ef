#include "trestle/train/mesh_options.h"

#include <algorithm>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/sharding_plan.h"

namespace trestle::train {

void check_mesh(const recipe::Recipe::Mesh& mesh, int ranks) {
  const std::int64_t parts = mesh.ranks_of_stage();
  const std::int64_t per_replica =
      mesh.pipeline > 0 ? mesh.pipeline : std::max<std::int64_t>(1, ranks / parts);
  if (per_replica * parts == ranks) return;
  const std::int64_t asked = std::max<std::int64_t>(1, mesh.pipeline) * parts;
  throw UsageError(
      text("[mesh] needs ", mesh.pipeline > 0 ? text("pipeline = ", mesh.pipeline, " x ") : "",
           "replicate = ", mesh.replicate, mesh.shard > 1 ? text(" x shard = ", mesh.shard) : "",
           mesh.tensor > 1 ? text(" x tensor = ", mesh.tensor) : "", ", but there ",
           plural(ranks, "is ", "are "), counted(ranks, "rank")),
      {.hint = text("Start ", asked, " ranks, for example with --ranks ", asked,
                    ", or change [mesh] (--mesh).")});
}

void check_device_count(std::int64_t devices, int ranks) {
  if (devices == 1 || devices == ranks) return;
  throw UsageError(text(devices, " devices are given for ", ranks, " ranks"),
                   {.hint = text("Give one device for each rank, for example --devices virtual:",
                                 ranks, ", or --devices cpu for all.")});
}

void set_sharding(const recipe::Recipe::Mesh& mesh, ShardOptions* options) {
  if (options->level == ShardLevel::Parameters) {
    const UnitChoiceOfRecipe choice = units_of(mesh);
    options->units = {.names = choice.names, .bytes = choice.bytes};
    const int ranks = reshard_ranks(mesh);
    options->reshard_after_forward = ranks == 0   ? Reshard(true)
                                     : ranks == 1 ? Reshard(false)
                                                  : Reshard(ranks);
  }
  options->shards_on_cpu = options->shards_on_cpu || mesh.offload;
}

StageUnits stage_units_of(const recipe::Recipe::Mesh& mesh) {
  return units_of(mesh).kind == UnitChoiceOfRecipe::Kind::Stage ? StageUnits::Stage
                                                                : StageUnits::Layers;
}

ShardBuckets buckets_of(const recipe::Recipe::Mesh& mesh, Bytes trained) {
  ShardBuckets buckets;
  buckets.size = bucket_of(mesh, trained);
  buckets.first = std::min(buckets.first, buckets.size);
  return buckets;
}

}  // namespace trestle::train
