#include "trestle/train/trainer.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/trestle/interrupt.h"
#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/field_help.h"

namespace trestle::app {

namespace {

struct Arguments {
  std::string recipe;
  std::string resume;
  std::string name;
  bool json = false;
  bool quiet = false;
  bool dry_run = false;
  std::vector<std::pair<std::string, std::string>> changes;
};

// "--train.epochs", "--epochs", and "--devices" for the field that every verb knows by that name.
std::string flags_of(const recipe::Field& field) {
  std::string flags = "--" + field.name();
  if (recipe::key_is_unique(field)) {
    flags += ",--" + field.key;
    std::string dashed = field.key;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (dashed != field.key) flags += ",--" + dashed;
  }
  if (field.name() == "devices.use") flags += ",--devices";
  return flags;
}

void add_field_flags(CLI::App& verb, Arguments& arguments) {
  const recipe::Recipe defaults;
  for (const recipe::Field& field : recipe::recipe_fields()) {
    const std::string standard = recipe::to_toml(field.get(defaults));
    std::string help = train::help_of(field) + " (" + describe(field);
    if (standard != "\"\"" && standard != "[]") help += "; default " + standard;
    verb.add_option_function<std::string>(
            flags_of(field),
            [&arguments, name = field.name()](const std::string& value) {
              arguments.changes.emplace_back(name, value);
            },
            help + ")")
        ->group("[" + field.section + "] of the recipe")
        ->type_name("");
  }
}

int perform(const Arguments& arguments, const RunOptions& options) {
  if (arguments.recipe.empty() == arguments.resume.empty())
    throw UsageError("give either a recipe to start from, or --resume RUN_FOLDER",
                     {.hint = "For example: trestle train recipes/unet_quick.toml"});
  auto [style, colours] = train::progress_style_of(STDOUT_FILENO);
  if (arguments.json) style = train::ProgressStyle::Json;
  if (arguments.quiet) style = train::ProgressStyle::Silent;
  const auto progress = train::make_progress(style, colours, std::cout);
  watch_interrupts();
  train::TrainHooks hooks;
  hooks.progress = progress.get();
  hooks.should_stop = interrupted;
  hooks.models = options.models;
  if (!arguments.resume.empty()) {
    if (arguments.dry_run) throw UsageError("--dry-run is for a recipe, not for --resume");
    return train::resume(arguments.resume, arguments.changes, hooks).finished ? 0 : 130;
  }
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  for (const auto& [name, value] : arguments.changes) recipe::set_field(recipe, name, value);
  if (!arguments.name.empty()) recipe.name = arguments.name;
  if (arguments.dry_run) {
    train::plan_run(recipe, hooks);
    return 0;
  }
  return train::train(recipe, hooks).finished ? 0 : 130;
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
  add_field_flags(*verb, *arguments);
  verb->footer(
      examples({"trestle train recipes/unet_quick.toml",
                "trestle train recipes/unet_quick.toml --epochs 3 --devices virtual:2x512MiB",
                "trestle train recipes/unet_carvana.toml --dry-run",
                "trestle train recipes/resnet18_mnist.toml --schedule 1f1b --balance 4,6",
                "trestle train --resume runs/unet_quick --epochs 12"}) +
      "Ctrl-C finishes the step and saves (exit code 130); a second one ends at once.\n"
      "Exit codes: 0 done, 1 failed, 2 asked for something that cannot be.");
  verb->callback([arguments, &action, &options] {
    action = [arguments, &options] { return perform(*arguments, options); };
  });
}

}  // namespace trestle::app
