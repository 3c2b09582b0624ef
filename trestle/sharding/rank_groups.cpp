#include "trestle/sharding/rank_groups.h"

#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/replicas.h"

namespace trestle::sharding {

namespace {

comm::Group few_ranks(const DeviceMesh& mesh, const ShardOptions& options) {
  const Reshard reshard = options.reshard_after_forward;
  if (options.level != ShardLevel::Parameters || reshard.to_all()) return {};
  const int all = mesh.size(options.shard), few = reshard.ranks();
  if (few < 1 || all % few != 0)
    throw UsageError(text("reshard_after_forward = ", few, " does not divide the ", all,
                          " ranks of the mesh's dimension '", options.shard, "'"),
                     {.hint = "Each so many of them keep a unit together: true, false, or a number "
                              "that divides them."});
  return few == 1 || few == all ? comm::Group() : mesh.neighbours(options.shard, few);
}

// Those that the model's ranks are along, in the mesh's order.
std::vector<std::string> dimensions_of(const DeviceMesh& mesh, const ShardOptions& options) {
  std::vector<std::string> names;
  for (const auto& dimension : mesh.layout().dimensions())
    if (dimension.name == options.replicate || dimension.name == options.shard)
      names.push_back(dimension.name);
  return names;
}

bool repeats(const DeviceMesh& mesh, const ShardOptions& options) {
  return mesh.layout().has(options.replicate) && mesh.size(options.replicate) > 1;
}

}  // namespace

RankGroups rank_groups(const DeviceMesh& mesh, const ShardOptions& options) {
  const auto& layout = mesh.layout();
  RankGroups ranks;
  ranks.mesh = layout.to_text();
  const std::vector<std::string> names = dimensions_of(mesh, options);
  if (names.empty()) {
    throw UsageError(text("the mesh ", ranks.mesh, " has neither a dimension '", options.replicate,
                          "' nor '", options.shard, "'"),
                     {.hint = "Name them in ShardOptions::replicate and ::shard."});
  }
  for (const std::string& name : names) check_same_options(mesh.group(name), options);
  if (options.level != ShardLevel::None && !layout.has(options.shard)) {
    throw UsageError(
        text("level ", to_string(options.level), " divides over the mesh's dimension '",
             options.shard, "', and the mesh is ", ranks.mesh),
        {.hint = "Name the dimension so, or name it in ShardOptions::shard."});
  }
  ranks.all = names.size() == 1 ? mesh.group(names[0]) : mesh.flatten(names, "data").group("data");
  if (options.level == ShardLevel::None) return ranks;
  ranks.shard = mesh.group(options.shard);
  ranks.gathers = mesh.flatten({options.shard}, "gathers").group("gathers");
  ranks.few = few_ranks(mesh, options);
  if (repeats(mesh, options)) ranks.replicate = mesh.group(options.replicate);
  return ranks;
}

RankGroups more_rank_groups(const DeviceMesh& mesh, const ShardOptions& options) {
  const auto fresh = [&mesh](const std::vector<std::string>& names) {
    return mesh.flatten(names, "more").group("more");
  };
  RankGroups ranks;
  ranks.mesh = mesh.layout().to_text();
  ranks.all = fresh(dimensions_of(mesh, options));
  if (options.level == ShardLevel::None) return ranks;
  ranks.shard = fresh({options.shard});
  ranks.gathers = fresh({options.shard});
  ranks.few = few_ranks(mesh, options);
  if (repeats(mesh, options)) ranks.replicate = fresh({options.replicate});
  return ranks;
}

}  // namespace trestle::sharding
