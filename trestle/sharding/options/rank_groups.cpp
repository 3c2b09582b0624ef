#include "trestle/sharding/options/rank_groups.h"

#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/options/option_checks.h"

namespace trestle::sharding {
namespace {

comm::Group neighbours_of(const DeviceMesh& mesh, const ShardOptions& options) {
  const Reshard reshard = options.reshard_after_forward;
  if (options.level != ShardLevel::Parameters || reshard.to_all()) return {};
  const int all = mesh.size(options.mesh.shard), count = reshard.ranks();
  if (count < 1 || all % count != 0)
    throw UsageError(text("reshard_after_forward = ", count, " does not divide the ", all,
                          " ranks of the mesh's dimension '", options.mesh.shard, "'"),
                     {.hint = "Set true, false, or a number of ranks that divides them: that many "
                              "neighbours keep a unit together."});
  return count == 1 || count == all ? comm::Group() : mesh.neighbours(options.mesh.shard, count);
}

// The dimensions along which the ranks hold the model, in the mesh's order.
std::vector<std::string> dimensions_of(const DeviceMesh& mesh, const ShardOptions& options) {
  std::vector<std::string> names;
  for (const auto& dimension : mesh.layout().dimensions())
    if (dimension.name == options.mesh.replicate || dimension.name == options.mesh.shard)
      names.push_back(dimension.name);
  return names;
}

// `group_of` returns the group along dimensions of these names.
template <class GroupOf>
RankGroups make_rank_groups(const DeviceMesh& mesh, const ShardOptions& options,
                            const GroupOf& group_of) {
  const auto& layout = mesh.layout();
  RankGroups ranks;
  ranks.mesh = layout.to_text();
  ranks.all = group_of(dimensions_of(mesh, options));
  if (options.level == ShardLevel::None) return ranks;
  ranks.shard = group_of({options.mesh.shard});
  ranks.gathers = mesh.flatten({options.mesh.shard}, "gathers").group("gathers");
  ranks.neighbours = neighbours_of(mesh, options);
  if (layout.has(options.mesh.replicate) && layout.size(options.mesh.replicate) > 1)
    ranks.replicate = group_of({options.mesh.replicate});
  return ranks;
}

}  // namespace

RankGroups rank_groups(const DeviceMesh& mesh, const ShardOptions& options) {
  const std::string words = mesh.layout().to_text();
  const std::vector<std::string> names = dimensions_of(mesh, options);
  if (names.empty()) {
    throw UsageError(text("the mesh ", words, " has neither a dimension '", options.mesh.replicate,
                          "' nor a dimension '", options.mesh.shard, "'"),
                     {.hint = "Set ShardOptions::mesh to its names."});
  }
  for (const std::string& name : names) check_same_options(mesh.group(name), options);
  if (options.level != ShardLevel::None && !mesh.layout().has(options.mesh.shard)) {
    throw UsageError(
        text("level ", to_string(options.level), " shards along the mesh's dimension '",
             options.mesh.shard, "', but the mesh is ", words),
        {.hint = "Give the dimension this name, or set ShardOptions::mesh.shard."});
  }
  return make_rank_groups(mesh, options, [&mesh](const std::vector<std::string>& along) {
    return along.size() == 1 ? mesh.group(along[0]) : mesh.flatten(along, "data").group("data");
  });
}

RankGroups separate_rank_groups(const DeviceMesh& mesh, const ShardOptions& options) {
  return make_rank_groups(mesh, options, [&mesh](const std::vector<std::string>& along) {
    return mesh.flatten(along, "more").group("more");
  });
}

}  // namespace trestle::sharding
