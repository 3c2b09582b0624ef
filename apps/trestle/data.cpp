#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/data_set.h"

namespace trestle::app {

namespace {

// A count that moves in place, on a terminal only.
std::function<void(std::int64_t, std::int64_t)> counter(const char* verb) {
  if (isatty(STDOUT_FILENO) == 0) return {};
  return [verb](std::int64_t done, std::int64_t all) {
    std::cout << "\r" << verb << " " << done << "/" << all << (done == all ? "\n" : "")
              << std::flush;
  };
}

int synthesize(const std::string& kind, train::Synthesis wanted) {
  const train::DataSet& set = train::find_data_set(kind);
  wanted.progress = counter("drawn");
  std::string made;
  try {
    made = set.synthesize(wanted);
  } catch (UsageError& error) {
    error.add_context("--count says how many, --width and --height how large, --out where.");
    throw;
  } catch (FileError& error) {
    error.add_context("Another --out is another folder.");
    throw;
  }
  std::cout << "wrote " << made << std::endl;
  return 0;
}

// Flags that say something of other data sets only.
void refuse_flags_of_others(const CLI::App& verb, const train::DataSet& set) {
  std::vector<std::string> flags;
  for (const train::DataSet& other : train::data_sets())
    for (const std::string& path : other.paths)
      if (std::find(set.paths.begin(), set.paths.end(), path) == set.paths.end())
        flags.push_back("--" + path);
  if (set.predicts != train::Predicts::Mask) flags.push_back("--classes");
  refuse_without_effect(verb, flags, "for " + set.name);
}

// The flags of `data check` are fields of a recipe.
int check(const CLI::App& verb, const recipe::Recipe& recipe) {
  const train::DataSet& set = train::find_data_set(recipe.data.name);
  refuse_flags_of_others(verb, set);
  std::vector<std::string> flags;
  for (const std::string& path : set.paths) flags.push_back("--" + path + " DIR");
  if (!train::problems_of_data(recipe).empty())
    throw UsageError(text("data check ", set.name, " needs ", join(flags, " and ")));
  for (const std::string& path : set.paths)
    need_folder(verb.get_option("--" + path)->as<std::string>(), "--" + path);
  const data::CheckReport report = set.check(recipe, counter("checked"));
  std::cout << report.count << " good examples\n";
  for (const auto& [size, count] : report.sizes)
    std::cout << "  " << count << " of " << size << "\n";
  std::cout << std::flush;
  if (report.ok()) return 0;
  throw FormatError(text(report.problems.size(),
                         report.problems.size() == 1 ? " problem:\n  " : " problems:\n  ",
                         join(report.problems, "\n  ")));
}

// The data sets as a verb's help lists them.
std::string kinds() {
  std::string lines = "One of:";
  for (const train::DataSet& set : train::data_sets())
    lines += "\n  " + set.name + ": " + set.summary;
  return lines;
}

void add_synthesize(CLI::App& verb, Action& action) {
  CLI::App* make =
      verb.add_subcommand("synthesize", "Write synthetic data in the same files and formats");
  auto kind = std::make_shared<std::string>();
  auto wanted = std::make_shared<train::Synthesis>();
  make->add_option("kind", *kind, kinds())->required()->type_name("KIND");
  make->add_option("--count", wanted->count, "How many")->required()->type_name("N");
  make->add_option("--out", wanted->out, "The folder")->required()->type_name("DIR");
  make->add_option("--width", wanted->width, "carvana: pixels (default 1918)")->type_name("N");
  make->add_option("--height", wanted->height, "carvana: pixels (default 1280)")->type_name("N");
  make->add_option("--seed", wanted->seed, "The same seed gives the same files (default 42)")
      ->type_name("N");
  make->footer(examples({"trestle data synthesize carvana --count 64 --out data/carvana",
                         "trestle data synthesize mnist --count 6000 --out data/mnist"}));
  make->callback(
      [kind, wanted, &action] { action = [kind, wanted] { return synthesize(*kind, *wanted); }; });
}

void add_check(CLI::App& verb, Action& action) {
  CLI::App* look = verb.add_subcommand(
      "check", "Read every file and list everything that would stop a training");
  auto recipe = std::make_shared<recipe::Recipe>();
  look->add_option("kind", recipe->data.name, kinds())->required()->type_name("KIND");
  look->add_option("--images", recipe->data.images, "carvana: the folder of images")
      ->type_name("DIR");
  look->add_option("--masks", recipe->data.masks, "carvana: the folder of masks")->type_name("DIR");
  look->add_option("--classes", recipe->model.classes,
                   "carvana: how many class ids there are (default 2)")
      ->type_name("N");
  look->add_option("--folder", recipe->data.folder, "mnist: the folder of the four files")
      ->type_name("DIR");
  look->footer(examples(
      {"trestle data check carvana --images data/carvana/train_hq --masks data/carvana/train_masks",
       "trestle data check mnist --folder data/mnist"}));
  look->callback(
      [look, recipe, &action] { action = [look, recipe] { return check(*look, *recipe); }; });
}

}  // namespace

void add_data(CLI::App& app, Action& action) {
  CLI::App* verb = app.add_subcommand("data", "Make synthetic data, or check data in full");
  verb->require_subcommand(1);
  verb->footer(examples({"trestle data synthesize carvana --count 64 --out data/carvana",
                         "trestle data check carvana --images data/carvana/train_hq --masks "
                         "data/carvana/train_masks",
                         "trestle data <verb> --help"}));
  add_synthesize(*verb, action);
  add_check(*verb, action);
}

}  // namespace trestle::app
