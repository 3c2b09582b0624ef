#include "trestle/train/trainer.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/trestle/interrupt.h"
#include "apps/trestle/output.h"
#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::app {

namespace {

struct Arguments {
  std::string recipe;
  std::string resume;
  std::optional<std::string> name;
  bool json = false;
  bool quiet = false;
  bool dry_run = false;
  FieldChanges changes;
};

// After a run: 0, or why it stopped between two steps.
int exit_code(const train::TrainResult& result) {
  if (result.finished) return 0;
  if (interrupted()) return interrupted_exit_code();
  const std::string why = why_output_was_lost();
  if (!why.empty())
    throw Error(why, {.hint = "The run was stopped and saved. To go on: trestle train --resume " +
                              result.run_folder.string()});
  return 1;
}

int perform(const CLI::App& verb, const Arguments& arguments, const RunOptions& options) {
  if (arguments.recipe.empty() == arguments.resume.empty())
    throw UsageError("give either a recipe to start from, or --resume RUN_FOLDER",
                     {.hint = "For example: trestle train recipes/unet_quick.toml"});
  if (!arguments.resume.empty())
    refuse_without_effect(verb, {"--name", "--runs", "--dry-run"}, "with --resume");
  if (arguments.json && arguments.quiet) throw UsageError("give --json or --quiet, not both");
  auto [style, colours] = train::progress_style_of(STDOUT_FILENO);
  if (arguments.json) style = train::ProgressStyle::Json;
  if (arguments.quiet) style = train::ProgressStyle::Silent;
  const auto progress = train::make_progress(style, colours, std::cout);
  train::TrainHooks hooks;
  hooks.progress = progress.get();
  hooks.begins = finish_steps_on_interrupt;
  hooks.should_stop = [] { return interrupted() || !output_arrives(); };
  hooks.making_data = goes_on;
  hooks.models = options.models;
  hooks.additions = additions_of(options);
  if (!arguments.resume.empty())
    return exit_code(train::resume(arguments.resume, arguments.changes, hooks));
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  for (const auto& [name, value] : arguments.changes) recipe::set_field(recipe, name, value);
  if (arguments.name) recipe.name = *arguments.name;
  if (arguments.dry_run) {
    train::plan_run(recipe, hooks);
    return 0;
  }
  return exit_code(train::train(recipe, hooks));
}

}  // namespace

void add_train(CLI::App& app, Action& action, const RunOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "train", "Train a model as a recipe says; flags override every field of it");
  auto arguments = std::make_shared<Arguments>();
  verb->add_option("recipe", arguments->recipe, "A TOML file, see recipes/")->type_name("RECIPE");
  verb->add_option("--resume", arguments->resume,
                   "Go on with a run where it was saved, to the same bits")
      ->type_name("RUN_FOLDER");
  verb->add_option("--name", arguments->name, "The run's name (default: the recipe file's)")
      ->type_name("NAME");
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
                "trestle train --resume runs/unet_quick --epochs 12"}) +
      "Ctrl-C, SIGTERM or SIGHUP finishes the batch and saves; a second one ends at once.\n" +
      exit_codes());
  verb->callback([verb, arguments, &action, &options] {
    action = [verb, arguments, &options] { return perform(*verb, *arguments, options); };
  });
}

}  // namespace trestle::app
