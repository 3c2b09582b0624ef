#include "trestle/train/trainer.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/trestle/exit_codes.h"
#include "apps/trestle/interrupt.h"
#include "apps/trestle/mesh_flags.h"
#include "apps/trestle/output.h"
#include "apps/trestle/ranks.h"
#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/comm/world.h"
#include "trestle/recipe/deepspeed_recipe.h"
#include "trestle/train/run_folder.h"

namespace trestle::app {

namespace {

struct TrainArguments {
  std::string recipe;
  std::string resume;
  std::optional<std::string> name;
  std::string mesh;
  std::string deepspeed;
  RankOptions ranks;
  bool json = false;
  bool quiet = false;
  bool dry_run = false;
  FieldChanges changes;
};

// 0, or what a signal to any of the ranks ends them with: it may have come to one alone.
int code_of_signals(const World* world) {
  const int mine = interrupted() ? interrupted_exit_code() : 0;
  if (world == nullptr) return mine;
  const auto all = world->group().all_gather_bytes(text(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == "0") continue;
    if (mine == 0 && world->rank() == 0)
      std::cerr << "trestle: a signal to rank " << rank << " stopped all\n";
    return mine != 0 ? mine : std::stoi(all[rank]);
  }
  return 0;
}

// After a run: 0, or why it stopped between two steps.
int exit_code(const train::TrainResult& result, const World* world) {
  if (result.finished) return 0;
  if (const int code = code_of_signals(world); code != 0) return code;
  const bool shows = world == nullptr || world->rank() == 0;
  const std::string why = why_output_was_lost();
  if (!why.empty() && shows)
    throw Error(why, {.hint = "The run was stopped and saved. To go on: trestle train --resume " +
                              shell_word(result.run_folder.string())});
  return 1;
}

// What is the same on all ranks; `world` is null for one process alone.
train::TrainHooks hooks_for(const World* world, train::Progress* progress,
                            const RunOptions& options) {
  train::TrainHooks hooks;
  hooks.world = world;
  const bool first = world == nullptr || world->rank() == 0;
  hooks.progress = progress;
  if (first) {
    hooks.begins = finish_steps_on_interrupt;
  } else if (world->backend() != "threads") {
    hooks.begins = [] { stop_on_interrupt(""); };  // rank 0 says what happens
  }
  hooks.should_stop = [first] { return interrupted() || (first && !output_arrives()); };
  hooks.making_data = goes_on;
  hooks.models = options.models;
  hooks.additions = additions_of(options);
  return hooks;
}

recipe::Recipe with_changes(recipe::Recipe recipe, const FieldChanges& changes) {
  for (const auto& [name, value] : changes) recipe::set_field(recipe, name, value);
  return recipe;
}

recipe::Recipe recipe_of(const TrainArguments& arguments) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  if (arguments.name) recipe.name = *arguments.name;
  return recipe;
}

// The recipe without the flags' changes. Throws UsageError for words and a recipe that cannot be, which is said before any rank
// is started.
recipe::Recipe checked(const CLI::App& verb, const TrainArguments& arguments) {
  if (arguments.recipe.empty() == arguments.resume.empty())
    throw UsageError("give either a recipe to start from, or --resume RUN_FOLDER",
                     {.hint = "For example: trestle train recipes/unet_quick.toml"});
  if (!arguments.resume.empty())
    refuse_without_effect(verb, {"--name", "--runs", "--dry-run", "--deepspeed"}, "with --resume");
  if (arguments.json && arguments.quiet) throw UsageError("give --json or --quiet, not both");
  if (arguments.dry_run) {
    refuse_without_effect(verb, {"--max-restarts"}, "with --dry-run");
    if (arguments.deepspeed.empty()) refuse_without_effect(verb, {"--ranks"}, "with --dry-run");
  }
  if (arguments.resume.empty()) return recipe_of(arguments);
  return train::recipe_of(train::open_run_folder(arguments.resume));
}

// The recipe as DeepSpeed's file makes it, which what is given may not contradict; returns what to say of that.
std::vector<std::string> take_deepspeed(const TrainArguments& arguments, const FieldChanges& given,
                                        recipe::Recipe& recipe) {
  const int asked = asked_ranks(arguments.ranks);
  const auto run = recipe::deepspeed_run(arguments.deepspeed, recipe,
                                         asked > 0 ? asked : ranks_of(recipe.mesh), given);
  recipe = with_changes(recipe, run.changes);
  return split(trim(run.description), '\n');
}

int perform_train(const CLI::App& verb, TrainArguments arguments, const RunOptions& options,
                  const std::vector<std::string>& words) {
  recipe::Recipe recipe;
  recipe::Recipe::Mesh before;    // that of the recipe or the run, without flags
  std::vector<std::string> said;  // of a run, before its plan
  try {
    const FieldChanges flags = arguments.changes;
    FieldChanges given = flags;
    for (const auto& change : changes_of_mesh(arguments.mesh)) given.push_back(change);
    arguments.changes = given;
    for (auto& change : changes_beside_mesh(arguments.mesh, flags))
      arguments.changes.push_back(std::move(change));
    recipe = checked(verb, arguments);
    before = recipe.mesh;
    recipe = with_changes(recipe, arguments.changes);
    check_mesh_alone(arguments.mesh, flags);
    if (!arguments.deepspeed.empty()) said = take_deepspeed(arguments, given, recipe);
    check_shard_level(recipe, flags);
    check_ranks_of_mesh(arguments.mesh, recipe.mesh, asked_ranks(arguments.ranks));
  } catch (const UsageError&) {  // the same on all ranks of a launcher
    if (another_rank_complains()) return misused;
    throw;
  }
  auto [style, colours] = train::progress_style_of(STDOUT_FILENO);
  if (arguments.json) style = train::ProgressStyle::Json;
  if (arguments.quiet) style = train::ProgressStyle::Silent;
  if (arguments.dry_run) {
    if (another_rank_prints()) return 0;
    const auto progress = train::make_progress(style, colours, std::cout);
    for (const std::string& line : said) progress->note(line);
    for (const auto& [field, value] :
         devices_of_mesh(recipe, before, ranks_of(recipe.mesh), arguments.changes)) {
      progress->note(note_of_devices(recipe, ranks_of(recipe.mesh), value));
      recipe::set_field(recipe, field, value);
    }
    train::plan_run(recipe, hooks_for(nullptr, progress.get(), options));
    return 0;
  }
  RankOptions ranks = arguments.ranks;
  ranks.words = words;
  ranks.files = {arguments.recipe, arguments.deepspeed};
  ranks.otherwise = ranks_of(recipe.mesh);
  ranks.deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(recipe.pipeline.deadline * 1000));
  return on_ranks(ranks, [&, style = style, colours = colours](const World* world) {
    const bool first = world == nullptr || world->rank() == 0;
    const auto progress = first ? train::make_progress(style, colours, std::cout) : nullptr;
    const train::TrainHooks hooks = hooks_for(world, progress.get(), options);
    FieldChanges changes = arguments.changes;
    recipe::Recipe own = recipe;
    for (const std::string& line : said)
      if (progress) progress->note(line);
    const int size = world ? world->size() : 1;
    for (auto& change : devices_of_mesh(recipe, before, size, changes)) {
      if (progress) progress->note(note_of_devices(recipe, size, change.second));
      recipe::set_field(own, change.first, change.second);
      changes.push_back(std::move(change));
    }
    const auto result = arguments.resume.empty() ? train::train(own, hooks)
                                                 : train::resume(arguments.resume, changes, hooks);
    return exit_code(result, world);
  });
}

}  // namespace

void add_train(CLI::App& app, Action& action, const RunOptions& options,
               const std::vector<std::string>& words) {
  CLI::App* verb = app.add_subcommand(
      "train", "Train a model as a recipe says; flags override every field of it");
  auto arguments = std::make_shared<TrainArguments>();
  verb->add_option("recipe", arguments->recipe, "A TOML file, or the name of one in recipes/")
      ->type_name("RECIPE");
  verb->add_option("--resume", arguments->resume,
                   "Go on with a run where it was saved, to the same bits")
      ->type_name("RUN_FOLDER");
  verb->add_option("--name", arguments->name, "The run's name (default: the recipe file's)")
      ->type_name("NAME");
  verb->add_option("--ranks", arguments->ranks.ranks,
                   "On so many ranks, one stage each: 4 (processes) or threads:4. Started by "
                   "torchrun, srun or trestle launch it is not needed")
      ->type_name("N");
  verb->add_option(
          "--mesh", arguments->mesh,
          "How the ranks are laid out: pipeline=2,replicate=2 is two pipelines of two stages, "
          "each with half of every batch; shard=2 instead of replicate=2 divides the training "
          "state too (--shard-level). What it does not name there is one of, also with --resume. "
          "Without --ranks as many processes are started")
      ->type_name("NAME=N,...");
  verb->add_option(
          "--deepspeed", arguments->deepspeed,
          "What DeepSpeed's JSON file says of batch, optimizer, precision and of what ranks "
          "divide, instead of the recipe (docs/deepspeed.md)")
      ->type_name("FILE");
  add_number(
      *verb, "--max-restarts", {0, 1'000'000},
      [arguments](std::int64_t n) { arguments->ranks.max_restarts = static_cast<int>(n); },
      "How often --ranks N starts all processes anew after one failed, from what was saved last "
      "(default 0)")
      ->type_name("N");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "Print what would happen and what it would cost, then stop");
  verb->add_flag("--json", arguments->json, "Print one JSON object a line");
  verb->add_flag("--quiet", arguments->quiet, "Print nothing but errors");
  add_field_flags(*verb, arguments->changes, options);
  verb->footer(
      examples({"trestle train recipes/unet_quick.toml",
                "trestle train recipes/unet_quick.toml --epochs 3 --devices virtual:2x512MiB",
                "trestle train recipes/unet_carvana.toml --dry-run",
                "trestle train recipes/resnet18_mnist.toml --schedule 1f1b --balance 4,6",
                "trestle train recipes/unet_quick.toml --ranks 2",
                "trestle train resnet18_mnist --mesh replicate=4 --ranks 4",
                "trestle train recipes/resnet18_mnist.toml --mesh replicate=2,shard=2",
                "trestle train --resume runs/unet_quick --epochs 12"}) +
      "Ctrl-C, SIGTERM or SIGHUP finishes the batch and saves; a second one ends at once.\n" +
      exit_codes());
  verb->callback([verb, arguments, &action, &options, &words] {
    action = [verb, arguments, &options, &words] {
      return perform_train(*verb, *arguments, options, words);
    };
  });
}

}  // namespace trestle::app
