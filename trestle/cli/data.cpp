#include <algorithm>
#include <iostream>
#include <memory>

#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/json.h"
#include "trestle/cli/verbs.h"
#include "trestle/data/files/npy.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/find_data.h"
#include "trestle/train/example_check.h"
#include "trestle/train/field_help.h"
#include "trestle/train/progress/bar.h"

namespace trestle::cli {

namespace {

// The data sets that can be synthesized.
std::vector<train::DataSet> synthetic_sets() {
  std::vector<train::DataSet> sets = train::data_sets();
  std::erase_if(sets, [](const train::DataSet& set) { return !set.synthesize; });
  return sets;
}

int synthesize(const std::string& kind, train::Synthesis wanted) {
  const std::vector<train::DataSet> sets = synthetic_sets();
  const train::DataSet& set = choose("kind of synthetic data", kind, sets);
  wanted.progress = [show = train::count_bar("drawn")](std::int64_t done, std::int64_t all) {
    if (show) show(done, all);
    if (!should_continue(done, all)) train::throw_synthesis_stopped(done, all);
  };
  std::string made;
  try {
    made = set.synthesize(wanted);
  } catch (UsageError& error) {
    error.add_context(
        "--count is the number of examples, --width and --height their size, --out the folder.");
    throw;
  } catch (FileError& error) {
    error.add_context("Choose another folder with --out.");
    throw;
  }
  std::cout << "wrote " << made << std::endl;
  return 0;
}

// The fields of a recipe that are flags of `data check`.
const std::vector<std::string> check_fields = {
    "data.images", "data.input_array", "data.target_array", "data.masks",
    "data.folder", "data.mask_suffix", "data.mask_values",  "data.mask_ignore",
    "data.scale",  "data.image_width", "data.image_height", "data.spacing",
    "data.tokens", "model.channels",   "model.classes"};

std::string flag_of(const std::string& key) {
  std::string flag = "--" + key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// Throws UsageError for flags that this data set does not read.
void refuse_flags_of_others(const Verb& verb, const train::DataSet& set) {
  std::vector<std::string> flags;
  for (const std::string& name : check_fields) {
    const recipe::Field& field = *recipe::find_field(name);
    if (field.section == "data" && !set.reads(field.key)) flags.push_back(flag_of(field.key));
  }
  refuse_without_effect(verb, flags, "for " + set.name);
}

using Changes = std::vector<std::pair<std::string, std::string>>;

void print_report(const data::CheckReport& report, bool synthetic) {
  std::cout << counted(report.count, "good example") << (synthetic ? ", synthetic\n" : "\n");
  for (const auto& [size, count] : report.sizes)
    std::cout << "  " << count << " of " << size << "\n";
  for (const std::string& note : report.notes) std::cout << note << "\n";
  std::cout << std::flush;
}

// A training of the recipe refuses data that its model or its loss does not take.
void add_problem_of_model(const recipe::Recipe& recipe, const models::OwnModels& models,
                          const train::UserParts& own, data::CheckReport& report) {
  if (recipe.model.name.empty()) return;
  const std::string problem = train::problem_of_model(recipe, models, own);
  if (problem.empty()) return;
  const auto same = [&](const std::string& known) { return known.starts_with(problem); };
  if (std::ranges::none_of(report.problems, same)) report.problems.push_back(problem);
}

struct CheckArguments {
  std::string what;  // the name of a data set, or the file of a recipe
  Changes changes;
  bool json = false;
};

int check_data_set(const Verb& verb, const CheckArguments& arguments, const RunOptions& options) {
  const auto& [what, changes, json] = arguments;
  const train::UserParts own = user_parts_of(options);
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
    if (paths[i] == set.usual_place) continue;  // the check reports what is missing there
    const std::filesystem::path file = data::file_of_array(paths[i].string());
    const std::string &key = set.paths[i], flag = flag_of(key);
    const std::string named = verb.given(flag) ? flag : text("'", key, "' in [data] of ", what);
    if (key.ends_with("_array"))
      need_file(file, named);
    else
      need_folder(paths[i], named);
  }
  data::CheckReport report =
      train::check_data(recipe, json ? data::CheckProgress() : train::count_bar("checked"), own);
  add_problem_of_model(recipe, options.models, own, report);
  const bool synthetic = train::synthetic_data_of(recipe, own).has_value();
  if (json)
    std::cout << to_json(CheckedData{.good = report.count,
                                     .synthetic = synthetic,
                                     .sizes = report.sizes,
                                     .notes = report.notes,
                                     .problems = report.problems})
              << std::endl;
  else
    print_report(report, synthetic);
  if (report.ok()) return 0;
  throw FormatError(text(counted(std::ssize(report.problems), "problem"), ":\n  ",
                         join(report.problems, "\n  ")));
}

// The data sets, as listed in a verb's help.
std::string kinds(const std::vector<train::DataSet>& sets) {
  std::string lines = "One of:";
  for (const train::DataSet& set : sets) lines += "\n  " + set.name + ": " + set.summary;
  return lines;
}

void add_synthesize(Verb verb) {
  Verb make = verb.add_verb("synthesize", "Write synthetic data in the same files and formats");
  auto kind = std::make_shared<std::string>();
  auto wanted = std::make_shared<train::Synthesis>();
  make.add("kind", *kind, kinds(synthetic_sets())).required().type("KIND");
  make.add_number(
          "--count", {1, 100'000'000}, [wanted](std::int64_t n) { wanted->count = n; },
          "The number of examples")
      .required()
      .type("N");
  make.add("--out", wanted->out, "A new or empty folder").required().type("DIR");
  const auto pixels = [&](const char* flag, int train::Synthesis::*side, const char* help) {
    make.add_number(
            flag, {1, 1'000'000'000},
            [wanted, side](std::int64_t n) { (*wanted).*side = static_cast<int>(n); }, help)
        .type("N");
  };
  pixels("--width", &train::Synthesis::width,
         "carvana, volumes: width in pixels (default 1918, 64)");
  pixels("--height", &train::Synthesis::height,
         "carvana, volumes: height in pixels (default 1280, 64)");
  pixels("--depth", &train::Synthesis::depth, "volumes: number of slices (default 32)");
  make.add_number(
          "--seed", {0, 9'000'000'000'000'000'000},
          [wanted](std::int64_t n) { wanted->seed = static_cast<std::uint64_t>(n); },
          "The same seed gives the same files (default 42)")
      .type("N");
  make.footer(examples({"trestle data synthesize carvana --count 64 --out data/cars",
                        "trestle data synthesize mnist --count 6000 --out data/digits",
                        "trestle data synthesize volumes --count 24 --out data/tubes"}));
  make.action([kind, wanted] { return synthesize(*kind, *wanted); });
}

void add_check(Verb verb, const RunOptions& options) {
  Verb check = verb.add_verb(
      "check", "Read every file and list every problem that would stop a training run");
  auto arguments = std::make_shared<CheckArguments>();
  std::string known = kinds(train::data_sets());
  for (const auto& [name, open] : options.data_sets)
    known += "\n  " + name + ": a data set of this program";
  check.add("kind", arguments->what, known + "\nor a recipe, NAME.toml").required().type("KIND");
  for (const std::string& name : check_fields) {
    const recipe::Field& field = *recipe::find_field(name);
    check
        .add(
            flag_of(field.key),
            [arguments, name](const std::string& value) {
              arguments->changes.emplace_back(name, value);
            },
            train::help_of(field))
        .type(name == "data.images" || name == "data.masks" || name == "data.folder" ||
                      name == "data.tokens"
                  ? "DIR"
                  : "VALUE");
  }
  check.add_switch("--json", arguments->json, "Print one JSON object");
  check.footer(examples(
      {"trestle data check carvana --images data/carvana/train_hq --masks data/carvana/train_masks",
       "trestle data check segmentation --images photos --masks masks --mask-suffix _mask",
       "trestle data check volumes --images scans --masks labels --classes 3",
       "trestle data check classification --folder flowers",
       "trestle data check mnist --folder data/mnist",
       "trestle data check tokens --tokens data/plays",
       "trestle data check recipes/unet_carvana.toml"}));
  check.action([check, arguments, &options] { return check_data_set(check, *arguments, options); });
}

}  // namespace

void add_data(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("data", "Write synthetic data, or check every file of a data set");
  verb.require_verb();
  verb.footer(examples({"trestle data synthesize carvana --count 64 --out data/cars",
                        "trestle data check carvana --images data/carvana/train_hq --masks "
                        "data/carvana/train_masks",
                        "trestle data <verb> --help"}));
  add_synthesize(verb);
  add_check(verb, options);
}

}  // namespace trestle::cli
