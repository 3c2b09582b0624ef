#include "trestle/cli/mesh_flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/mesh/layout/mesh_layout.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/recipe_schedule.h"

namespace trestle::cli {

namespace {

constexpr std::string_view virtual_prefix = "virtual:";

bool changes_field(const FieldChanges& changes, std::string_view name) {
  return std::ranges::any_of(changes, [&](const auto& change) { return change.first == name; });
}

// The number of virtual devices for these ranks, where the recipe has `count`.
int devices_for(const recipe::Recipe& recipe, const recipe::Recipe::Mesh& before, int ranks,
                int count) {
  if (recipe.mesh.ranks_of_stage() > 1 && ranks > 1) return ranks;
  const auto parts = static_cast<int>(before.ranks_of_stage());
  if (parts == 1 || recipe.mesh.ranks_of_stage() > 1 || count % parts != 0) return count;
  if (ranks > 1) return ranks;
  const auto& balance = recipe.pipeline.balance;
  return balance.empty() ? count / parts
                         : static_cast<int>(balance.size()) / train::stages_per_rank(recipe);
}

// The keys that need `tensor`, with their defaults.
FieldChanges usual_split() {
  return {{"mesh.sequence_parallel", "false"},
          {"pipeline.split_recomputed", "false"},
          {"mesh.split_layers", "[]"}};
}

// The keys of [mesh] that need `shard`, with their defaults.
FieldChanges usual_sharding() {
  const recipe::Recipe::Mesh usual;
  return {{"mesh.shard_level", usual.shard_level},
          {"mesh.units", join(usual.units, ",")},
          {"mesh.reshard", usual.reshard},
          {"mesh.offload", "false"}};
}

}  // namespace

FieldChanges changes_of_mesh(const std::string& words) {
  FieldChanges changes;
  if (words.empty()) return changes;
  const mesh::MeshLayout layout = mesh::parse_mesh(words);
  const std::vector<std::string> known = {"pipeline", "replicate", "shard", "tensor"};
  for (const mesh::Dimension& dimension : layout.dimensions()) {
    if (std::ranges::find(known, dimension.name) == known.end())
      throw UsageError(text("--mesh: there is no dimension '", dimension.name, "'",
                            did_you_mean(dimension.name, known)),
                       {.hint = "Write for example --mesh pipeline=2,replicate=2,shard=2."});
    changes.emplace_back("mesh." + dimension.name, text(dimension.size));
    if (dimension.name == "shard" && dimension.size == 1)  // a run that sharded no longer does
      for (const auto& change : usual_sharding()) changes.push_back(change);
    if (dimension.name == "tensor" && dimension.size == 1)
      for (const auto& change : usual_split()) changes.push_back(change);
  }
  return changes;
}

FieldChanges changes_of_mesh_and_flags(const std::string& words, const FieldChanges& flags) {
  FieldChanges changes = changes_of_mesh(words);
  if (!words.empty()) {
    const mesh::MeshLayout layout = mesh::parse_mesh(words);
    const recipe::Recipe::Mesh none;
    if (!layout.has("pipeline")) changes.emplace_back("mesh.pipeline", text(none.pipeline));
    if (!layout.has("replicate")) changes.emplace_back("mesh.replicate", text(none.replicate));
    if (!layout.has("tensor"))
      for (const auto& change : changes_of_mesh("tensor=1")) changes.push_back(change);
    if (!layout.has("shard"))
      for (const auto& change : changes_of_mesh("shard=1")) changes.push_back(change);
  }
  changes.insert(changes.end(), flags.begin(), flags.end());
  return changes;
}

void check_mesh_alone(const std::string& words, const FieldChanges& flags) {
  if (words.empty()) return;
  for (const std::string name : {"pipeline", "replicate", "shard", "tensor"})
    if (changes_field(flags, "mesh." + name))
      throw UsageError(text("--mesh ", words, " lays out all ranks, but --", name, " is given too"),
                       {.hint = text("Write it in --mesh, as ", name, "=2, or leave --mesh out.")});
}

void check_ranks_of_mesh(const std::string& words, const recipe::Recipe::Mesh& mesh, int asked) {
  const int ranks = ranks_of(mesh);
  if (words.empty() || asked == 0 || asked == ranks) return;
  throw UsageError(text("--mesh ", words, " lays out ", counted(ranks, "rank"), ", but there ",
                        plural(asked, "is ", "are "), asked),
                   {.hint = "A dimension that --mesh does not name has size 1. For stages over "
                            "ranks add pipeline=2, for example --mesh pipeline=2,replicate=2."});
}

int ranks_of(const recipe::Recipe::Mesh& mesh) {
  return static_cast<int>(std::max<std::int64_t>(mesh.pipeline, 1) * mesh.ranks_of_stage());
}

void check_shard_level(const recipe::Recipe& recipe, const FieldChanges& flags) {
  if (recipe.mesh.shard > 1 || !changes_field(flags, "mesh.shard_level")) return;
  throw UsageError(text("--shard-level ", recipe.mesh.shard_level, " needs ranks to shard over"),
                   {.hint = "Give their number, for example --mesh shard=2."});
}

int virtual_devices_of(const recipe::Recipe& recipe) {
  const std::string_view use = recipe.devices.use;
  if (!use.starts_with(virtual_prefix) || use.find(',') != std::string_view::npos) return 0;
  int count = 0;
  const auto [end, error] =
      std::from_chars(use.data() + virtual_prefix.size(), use.data() + use.size(), count);
  return error == std::errc() ? count : 0;
}

FieldChanges devices_of_mesh(const recipe::Recipe& recipe, const recipe::Recipe::Mesh& before,
                             int ranks, const FieldChanges& changes) {
  const int count = virtual_devices_of(recipe);
  if (changes_field(changes, "devices.use") || count == 0) return {};
  const int wanted = devices_for(recipe, before, ranks, count);
  if (wanted == count) return {};
  std::string_view budget = recipe.devices.use;
  budget.remove_prefix(
      std::min(budget.find_first_not_of("0123456789", virtual_prefix.size()), budget.size()));
  return {{"devices.use", text(virtual_prefix, wanted, budget)}};
}

std::string note_of_devices(const recipe::Recipe& recipe, int ranks, const std::string& devices) {
  return text("devices   ", devices, ": one for each ", ranks > 1 ? "rank" : "stage",
              " (the recipe has ", recipe.devices.use, ")");
}

}  // namespace trestle::cli
