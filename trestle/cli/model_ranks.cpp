#include "trestle/cli/model_ranks.h"

#include <chrono>
#include <cstdint>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/mesh_flags.h"
#include "trestle/comm/world.h"
#include "trestle/device/device.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/mesh_options.h"

namespace trestle::cli {

namespace {

// The number of ranks that --mesh lays out.
int ranks_of_mesh(const ModelRanks& wanted) {
  if (wanted.mesh.empty()) return 1;
  recipe::Recipe recipe;
  for (const auto& [name, value] : changes_of_mesh(wanted.mesh))
    recipe::set_field(recipe, name, value);
  const int ranks = ranks_of(recipe.mesh), asked = asked_ranks(wanted.ranks);
  if (ranks != recipe.mesh.tensor)
    throw UsageError(
        text("--mesh ", wanted.mesh, ": the ranks of a language model are tensor ranks alone"),
        {.hint = "Write for example --mesh tensor=2."});
  if (asked != 0 && asked != ranks)
    throw UsageError(
        text("--mesh ", wanted.mesh, " lays out ", counted(ranks, "rank"), ", but there ",
             plural(asked, "is ", "are "), asked),
        {.hint = "All ranks split the layers: give their number, or leave --mesh out."});
  return ranks;
}

// The one device of a rank, or those over which one process divides the blocks.
std::vector<Device> devices_of(const std::string& words, const train::RunRanks& ranks) {
  if (words.empty()) return {};
  std::vector<Device> all;
  ranks.in_turn([&] { all = parse_devices(words); });
  return train::devices_of_rank(all, ranks);
}

}  // namespace

bool ModelRank::is_process() const { return !ranks.alone() && world->backend() != "threads"; }

void add_model_rank_flags(Verb verb, ModelRanks& ranks, const std::string& note) {
  verb.add("--mesh", ranks.mesh,
           "tensor=2: two ranks, which split each layer of a language model "
           "(docs/tensor_parallel.md). This many processes are started; under torchrun, srun or "
           "trestle launch all ranks split the layers, also without --mesh")
      .type("tensor=N");
  verb.add("--ranks", ranks.ranks.ranks,
           "The number of these ranks: 2 (processes) or threads:2" + note)
      .type("N");
  verb.add_number(
          "--deadline", {1, 1'000'000},
          [&ranks](std::int64_t seconds) { ranks.ranks.deadline = std::chrono::seconds(seconds); },
          "Seconds that a rank waits for another one before all fail (default 600)")
      .type("N");
}

int on_model_ranks(ModelRanks& wanted, const std::function<void()>& prepare,
                   const std::function<int(const ModelRank&)>& work) {
  const auto prepare_ranks = [&] {
    prepare();
    wanted.ranks.default_ranks = ranks_of_mesh(wanted);
  };
  if (!is_valid_on_all_ranks(prepare_ranks)) return usage_error;
  RankOptions ranks = wanted.ranks;
  ranks.check = [&](int count) {
    train::check_text_model(wanted.model, wanted.options, count);
    // Only a machine with GPUs knows the number of cuda:all.
    if (!wanted.devices.empty() && wanted.devices != "cuda:all")
      train::check_device_count(std::ssize(planned_devices(wanted.devices)), count);
    if (wanted.ranks.check) wanted.ranks.check(count);
  };
  return on_ranks(ranks, [&](const World* world) {
    ModelRank rank{.world = world, .ranks = train::RunRanks(world), .options = wanted.options};
    recipe::Recipe::Mesh mesh;
    mesh.tensor = rank.ranks.size();
    rank.ranks.lay_out(mesh);
    rank.options.tensor = rank.ranks.tensor();
    rank.options.devices = devices_of(wanted.devices, rank.ranks);
    return work(rank);
  });
}

}  // namespace trestle::cli
