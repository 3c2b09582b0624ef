#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/trestle/interrupt.h"
#include "apps/trestle/verbs.h"
#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/npy.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/bar.h"
#include "trestle/train/data_set.h"
#include "trestle/train/field_help.h"
#include "trestle/train/find_data.h"

namespace trestle::app {

namespace {

// Those that have synthetic examples.
std::vector<train::DataSet> drawn_sets() {
  std::vector<train::DataSet> sets = train::data_sets();
  std::erase_if(sets, [](const train::DataSet& set) { return !set.synthesize; });
  return sets;
}

int synthesize(const std::string& kind, train::Synthesis wanted) {
  const std::vector<train::DataSet> sets = drawn_sets();
  const train::DataSet& set = choose("kind of synthetic data", kind, sets);
  wanted.progress = [show = train::count_bar("drawn")](std::int64_t done, std::int64_t all) {
    if (show) show(done, all);
    if (!goes_on(done, all)) train::throw_stopped_making(done, all);
  };
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

// The fields of a recipe that are flags of `data check`.
const std::vector<std::string> check_fields = {
    "data.images",       "data.input_array", "data.target_array", "data.masks", "data.folder",
    "data.mask_suffix",  "data.mask_values", "data.mask_ignore",  "data.scale", "data.image_width",
    "data.image_height", "model.channels",   "model.classes"};

std::string flag_of(const std::string& key) {
  std::string flag = "--" + key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// Flags that say something of other data sets only.
void refuse_flags_of_others(const CLI::App& verb, const train::DataSet& set) {
  std::vector<std::string> flags;
  for (const std::string& name : check_fields) {
    const recipe::Field& field = *recipe::find_field(name);
    if (field.section == "data" && !set.reads(field.key)) flags.push_back(flag_of(field.key));
  }
  refuse_without_effect(verb, flags, "for " + set.name);
}

using Changes = std::vector<std::pair<std::string, std::string>>;

// `what` names a data set, or a recipe.
int check_data(const CLI::App& verb, const std::string& what, const Changes& changes,
               const train::Additions& own) {
  recipe::Recipe recipe;
  if (what.ends_with(".toml"))
    recipe = recipe::read_recipe(what);
  else
    recipe.data.name = what;
  for (const auto& [name, value] : changes) recipe::set_field(recipe, name, value);
  const train::DataSet set = train::find_data_set(recipe.data.name, own);
  refuse_flags_of_others(verb, set);
  std::vector<std::string> flags;
  for (const std::string& path : set.paths)
    flags.push_back(flag_of(path) + (path.ends_with("_array") ? " FILE" : " DIR"));
  if (!train::problems_of_data(recipe, own).empty())
    throw UsageError(text("data check ", set.name, " needs ", join(flags, " and ")));
  const std::vector<std::filesystem::path> paths = train::data_paths(set, recipe);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (paths[i] == set.usual_place) continue;  // what is missing there, the check says
    const std::filesystem::path file = data::file_of_array(paths[i].string());
    const std::string &key = set.paths[i], flag = flag_of(key);
    const std::string named =
        verb.get_option(flag)->count() > 0 ? flag : text("'", key, "' in [data] of ", what);
    if (key.ends_with("_array"))
      need_file(file, named);
    else
      need_folder(paths[i], named);
  }
  const data::CheckReport report = train::check_data(recipe, train::count_bar("checked"), own);
  std::cout << counted(report.count, "good example")
            << (train::synthetic_data_of(recipe, own) ? ", synthetic\n" : "\n");
  for (const auto& [size, count] : report.sizes)
    std::cout << "  " << count << " of " << size << "\n";
  for (const std::string& note : report.notes) std::cout << note << "\n";
  std::cout << std::flush;
  if (report.ok()) return 0;
  throw FormatError(text(counted(std::ssize(report.problems), "problem"), ":\n  ",
                         join(report.problems, "\n  ")));
}

// As a verb's help lists them.
std::string kinds(const std::vector<train::DataSet>& sets) {
  std::string lines = "One of:";
  for (const train::DataSet& set : sets) lines += "\n  " + set.name + ": " + set.summary;
  return lines;
}

void add_synthesize(CLI::App& verb, Action& action) {
  CLI::App* make =
      verb.add_subcommand("synthesize", "Write synthetic data in the same files and formats");
  auto kind = std::make_shared<std::string>();
  auto wanted = std::make_shared<train::Synthesis>();
  make->add_option("kind", *kind, kinds(drawn_sets()))->required()->type_name("KIND");
  add_number(
      *make, "--count", {0, 1'000'000'000'000'000}, [wanted](std::int64_t n) { wanted->count = n; },
      "How many")
      ->required()
      ->type_name("N");
  make->add_option("--out", wanted->out, "The folder, a new one or empty")
      ->required()
      ->type_name("DIR");
  const auto pixels = [&](const char* flag, int train::Synthesis::*side, const char* help) {
    add_number(
        *make, flag, {1, 1'000'000'000},
        [wanted, side](std::int64_t n) { (*wanted).*side = static_cast<int>(n); }, help)
        ->type_name("N");
  };
  pixels("--width", &train::Synthesis::width, "carvana: pixels (default 1918)");
  pixels("--height", &train::Synthesis::height, "carvana: pixels (default 1280)");
  add_number(
      *make, "--seed", {0, 9'000'000'000'000'000'000},
      [wanted](std::int64_t n) { wanted->seed = static_cast<std::uint64_t>(n); },
      "The same seed gives the same files (default 42)")
      ->type_name("N");
  make->footer(examples({"trestle data synthesize carvana --count 64 --out data/cars",
                         "trestle data synthesize mnist --count 6000 --out data/digits"}));
  make->callback(
      [kind, wanted, &action] { action = [kind, wanted] { return synthesize(*kind, *wanted); }; });
}

void add_check(CLI::App& verb, Action& action, const RunOptions& options) {
  CLI::App* look = verb.add_subcommand(
      "check", "Read every file and list everything that would stop a training");
  auto what = std::make_shared<std::string>();
  auto changes = std::make_shared<Changes>();
  std::string known = kinds(train::data_sets());
  for (const auto& [name, open] : options.data_sets)
    known += "\n  " + name + ": of this program's own";
  look->add_option("kind", *what, known + "\nor a recipe, NAME.toml")
      ->required()
      ->type_name("KIND");
  for (const std::string& name : check_fields) {
    const recipe::Field& field = *recipe::find_field(name);
    look->add_option_function<std::string>(
            flag_of(field.key),
            [changes, name](const std::string& value) { changes->emplace_back(name, value); },
            train::help_of(field))
        ->type_name(name == "data.images" || name == "data.masks" || name == "data.folder"
                        ? "DIR"
                        : "VALUE");
  }
  look->footer(examples(
      {"trestle data check carvana --images data/carvana/train_hq --masks data/carvana/train_masks",
       "trestle data check segmentation --images photos --masks masks --mask-suffix _mask",
       "trestle data check classification --folder flowers",
       "trestle data check mnist --folder data/mnist",
       "trestle data check recipes/unet_carvana.toml"}));
  look->callback([look, what, changes, &action, &options] {
    action = [look, what, changes, &options] {
      return check_data(*look, *what, *changes, additions_of(options));
    };
  });
}

}  // namespace

void add_data(CLI::App& app, Action& action, const RunOptions& options) {
  CLI::App* verb = app.add_subcommand("data", "Make synthetic data, or check data in full");
  verb->require_subcommand(1);
  verb->footer(examples({"trestle data synthesize carvana --count 64 --out data/cars",
                         "trestle data check carvana --images data/carvana/train_hq --masks "
                         "data/carvana/train_masks",
                         "trestle data <verb> --help"}));
  add_synthesize(*verb, action);
  add_check(*verb, action, options);
}

}  // namespace trestle::app
