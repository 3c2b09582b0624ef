#include "trestle/sharding/rank_groups.h"

#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/model_checks.h"

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

// `group_of` gives the group along dimensions of these names.
template <class GroupOf>
RankGroups put_together(const DeviceMesh& mesh, const ShardOptions& options,
                        const GroupOf& group_of) {
  const auto& layout = mesh.layout();
  RankGroups ranks;
  ranks.mesh = layout.to_text();
  ranks.all = group_of(dimensions_of(mesh, options));
  if (options.level == ShardLevel::None) return ranks;
  ranks.shard = group_of({options.shard});
  ranks.gathers = mesh.flatten({options.shard}, "gathers").group("gathers");
  ranks.few = few_ranks(mesh, options);
  if (layout.has(options.replicate) && layout.size(options.replicate) > 1)
    ranks.replicate = group_of({options.replicate});
  return ranks;
}

}  // namespace

RankGroups rank_groups(const DeviceMesh& mesh, const ShardOptions& options) {
  const std::string words = mesh.layout().to_text();
  const std::vector<std::string> names = dimensions_of(mesh, options);
  if (names.empty()) {
    throw UsageError(text("the mesh ", words, " has neither a dimension '", options.replicate,
                          "' nor '", options.shard, "'"),
                     {.hint = "Name them in ShardOptions::replicate and ::shard."});
  }
  for (const std::string& name : names) check_same_options(mesh.group(name), options);
  if (options.level != ShardLevel::None && !mesh.layout().has(options.shard)) {
    throw UsageError(
        text("level ", to_string(options.level), " divides over the mesh's dimension '",
             options.shard, "', and the mesh is ", words),
        {.hint = "Name the dimension so, or name it in ShardOptions::shard."});
  }
  return put_together(mesh, options, [&mesh](const std::vector<std::string>& along) {
    return along.size() == 1 ? mesh.group(along[0]) : mesh.flatten(along, "data").group("data");
  });
}

RankGroups more_rank_groups(const DeviceMesh& mesh, const ShardOptions& options) {
  return put_together(mesh, options, [&mesh](const std::vector<std::string>& along) {
    return mesh.flatten(along, "more").group("more");
  });
}

}  // namespace trestle::sharding
