#include "trestle/train/sweep/sweep.h"

#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/output.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/progress/run_plan.h"
#include "trestle/train/sweep/sweep_files.h"
#include "trestle/train/without_effect.h"

namespace trestle::cli {

namespace {

struct SweepArguments {
  std::vector<std::string> recipes;
  std::vector<std::string> over;
  std::vector<std::string> set;
  std::string out;
  Overwrite overwrite = Overwrite::Refuse;
  int runs = 3;
  int steps = 5;
  int warm_up = 2;
  bool dry_run = false;
  bool json = false;
};

std::vector<recipe::Recipe> read_recipes(const SweepArguments& arguments) {
  std::vector<recipe::Recipe> recipes;
  for (const std::string& file : arguments.recipes) {
    recipes.push_back(recipe::read_recipe(file));
    for (const std::string& words : arguments.set) train::set_field(recipes.back(), words);
  }
  return recipes;
}

// Throws UsageError for a field that is set twice: the second value would silently win.
void refuse_set_twice(const SweepArguments& arguments, const std::vector<train::SweepAxis>& axes) {
  recipe::Recipe any;
  std::set<std::string> keys;
  for (const train::SweepAxis& axis : axes) keys.insert(axis.key);
  for (const std::string& words : arguments.set) {
    const std::string key = train::set_field(any, words);
    if (keys.insert(key).second) continue;
    throw UsageError(text("--set ", words, ": '", key, "' is given values twice"),
                     {.hint = "Leave one of them out."});
  }
}

// Throws UsageError for a field that no point of the sweep reads.
void refuse_idle_fields(const SweepArguments& arguments, const std::vector<recipe::Recipe>& recipes,
                        const std::vector<train::SweepAxis>& axes, const RunOptions& options) {
  std::vector<recipe::Recipe> all;
  for (const train::SweepPoint& point : train::sweep_points(recipes, axes))
    all.push_back(point.recipe);
  std::vector<std::string> fields;
  for (const train::SweepAxis& axis : axes) fields.push_back(axis.key);
  recipe::Recipe any;
  for (const std::string& words : arguments.set) fields.push_back(train::set_field(any, words));
  train::refuse_without_effect(all, fields, user_parts_of(options));
}

std::string out_folder(const SweepArguments& arguments,
                       const std::vector<recipe::Recipe>& recipes) {
  if (!arguments.out.empty()) return arguments.out;
  const std::string name = recipes.size() == 1 ? recipes[0].name + "_sweep" : "sweep";
  return (std::filesystem::path(recipes[0].train.runs) / name).string();
}

std::string row_in_words(const train::SweepRow& row) {
  if (!row.measured()) return "not measured";
  std::string words = text(format_duration(row.seconds()), " per step");
  if (row.runs.size() > 1)
    words += text(", ", format_duration(row.fastest()), " to ", format_duration(row.slowest()));
  if (!row.predicted.empty())
    words += text(" (predicted ", format_duration(row.predicted_seconds()), ")");
  return words;
}

std::size_t name_width(const train::SweepResult& result) {
  std::size_t width = 0;
  for (const train::SweepRow& row : result.rows)
    width = std::max(width, static_cast<std::size_t>(columns_of(row.name)));
  return width;
}

// A row of a table whose names have `width` columns, folded where it is wider than the terminal.
std::string row_of_table(const std::string& name, std::size_t width, const std::string& words) {
  const std::size_t blanks = width - std::min(width, static_cast<std::size_t>(columns_of(name)));
  constexpr int indent = 4;
  return folded(text(name, std::string(blanks + 2, ' '), words), columns_for_text(STDOUT_FILENO),
                indent);
}

int print_plan(const SweepArguments& arguments, const train::SweepResult& plan) {
  for (const train::SweepRow& row : plan.rows) {
    if (arguments.json)
      std::cout << train::plan_event(row, arguments.runs) << "\n";
    else
      std::cout << row_of_table(row.name, name_width(plan),
                                text(" ", row.runs.size(), " of ", counted(arguments.runs, "run"),
                                     " measured"))
                << "\n";
  }
  return 0;
}

// Prints a line for each run, with an estimate of the time left.
class RunPrinter {
 public:
  RunPrinter(const SweepArguments& arguments, std::size_t width)
      : arguments_(arguments), width_(width) {}

  void operator()(const train::SweepRow& row, std::int64_t done, std::int64_t all) {
    if (arguments_.json) {
      std::cout << train::run_event(row, done, all) << std::endl;
      return;
    }
    ++here_;
    std::ostringstream number;
    number << std::setw(4) << done << "/" << all << "  ";
    std::cout << row_of_table(number.str() + row.name, number.str().size() + width_,
                              row.error.empty() ? measured_words(row, done, all) : "failed")
              << std::endl;
  }

 private:
  std::string measured_words(const train::SweepRow& row, std::int64_t done,
                             std::int64_t all) const {
    std::string words = format_duration(row.runs.back()) + " per step";
    if (!row.predicted.empty())
      words += text(" (predicted ", format_duration(row.predicted.back()), ")");
    if (done < all)
      words += text(" · ",
                    format_duration(watch_.seconds() / static_cast<double>(here_) *
                                    static_cast<double>(all - done)),
                    " left");
    return words;
  }

  const SweepArguments& arguments_;
  std::size_t width_;
  Stopwatch watch_;
  std::int64_t here_ = 0;
};

void print_result(const train::SweepResult& result) {
  std::cout << "\n";
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const train::SweepRow& row = result.rows[i];
    const char* best = static_cast<int>(i) == result.best ? "   best" : "";
    std::cout << row_of_table(row.name, name_width(result), row_in_words(row) + best) << "\n";
  }
  for (const auto& file : result.files) std::cout << "wrote " << file.string() << "\n";
  std::cout << std::flush;
}

int sweep_exit_code(const SweepArguments& arguments, const train::SweepResult& result) {
  if (!result.finished) {
    if (!arguments.json)
      std::cout << "stopped. The measurements are kept: the same command resumes from there."
                << std::endl;
    return interrupted() ? interrupted_exit_code() : 1;
  }
  if (result.failed() == 0) return 0;
  std::string all;
  for (const train::SweepRow& row : result.rows)
    if (!row.error.empty()) all += text("\n", row.name, ": ", row.error);
  throw Error(
      text(result.failed(), " of ", counted(std::ssize(result.rows), "point"), " failed", all));
}

int perform_sweep(const SweepArguments& arguments, const RunOptions& options) {
  const std::vector<recipe::Recipe> recipes = read_recipes(arguments);
  std::vector<train::SweepAxis> axes;
  for (const std::string& words : arguments.over) axes.push_back(train::parse_axis(words));
  refuse_set_twice(arguments, axes);
  refuse_idle_fields(arguments, recipes, axes, options);
  train::SweepOptions sweep{.out = out_folder(arguments, recipes),
                            .overwrite = arguments.overwrite,
                            .runs = arguments.runs,
                            .warm_up = arguments.warm_up,
                            .steps = arguments.steps,
                            .models = options.models,
                            .user_parts = user_parts_of(options)};
  const train::SweepResult plan = train::plan_sweep(recipes, axes, sweep);
  if (!arguments.json)
    std::cout << train::versions() << "\n"
              << folded(text("sweep     ", counted(std::ssize(plan.rows), "point"), ", each ",
                             counted(arguments.runs, "run"), " of ",
                             counted(arguments.steps, "step"), " after ", arguments.warm_up,
                             " to warm up · results in ", sweep.out.string()),
                        columns_for_text(STDOUT_FILENO), 10)
              << "\n"
              << std::flush;
  if (arguments.dry_run) return print_plan(arguments, plan);
  stop_on_interrupt("\ntrestle: stopping; the measurements are kept\n");
  sweep.should_stop = [] { return interrupted() || !output_arrives(); };
  const train::SweepResult result =
      train::sweep(recipes, axes, sweep, RunPrinter(arguments, name_width(plan)));
  if (arguments.json)
    std::cout << train::done_event(result) << std::endl;
  else
    print_result(result);
  return sweep_exit_code(arguments, result);
}

}  // namespace

void add_sweep(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "sweep", "Measure the steps of a recipe over values of its fields, or of several recipes");
  auto arguments = std::make_shared<SweepArguments>();
  verb.add("recipe", arguments->recipes, "TOML files, see recipes/; several are compared")
      .required()
      .type("RECIPE...");
  verb.add("--over", arguments->over,
           "A field and its values; given more than once, every combination is measured. Values "
           "that contain commas are separated by semicolons")
      .one_value_each()
      .type("KEY=VALUE,...");
  verb.add("--set", arguments->set,
           "A field and its value at every point; trestle train takes it too")
      .one_value_each()
      .type("KEY=VALUE");
  const auto count = [&](const char* flag, int SweepArguments::*which, int smallest,
                         const char* help) {
    verb.add_number(
            flag, {smallest, 1'000'000},
            [arguments, which](std::int64_t n) { (*arguments).*which = static_cast<int>(n); }, help)
        .type("N");
  };
  count("--runs", &SweepArguments::runs, 1, "Runs per point, each in its own process (default 3)");
  count("--steps", &SweepArguments::steps, 1, "Timed steps per run (default 5)");
  count("--warm-up", &SweepArguments::warm_up, 0, "Steps before the timed ones (default 2)");
  verb.add("--out", arguments->out,
           "The folder of the results (default: runs/<recipe>_sweep). Points that it has already "
           "are not measured again")
      .type("FOLDER");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.add_switch("--dry-run", arguments->dry_run, "List the points; measure nothing");
  verb.add_switch("--json", arguments->json, "Print one JSON object per line");
  verb.footer(
      examples({"trestle sweep recipes/resnet50_pipelined.toml --over pipeline.split_size=12,20,60",
                "trestle sweep recipes/unet_quick.toml --over micro_batches=1,2,4,8 --over "
                "schedule=gpipe,1f1b",
                "trestle sweep recipes/unet_quick.toml --over \"balance=13,9;11,11\" --runs 5",
                "trestle sweep recipes/resnet50_*.toml --set train.batch=24 --out runs/compared"}) +
      "Writes sweep.csv, sweep.json, sweep.svg and sweep.png beside measurements.jsonl.\n" +
      exit_codes());
  verb.action([arguments, &options] { return perform_sweep(*arguments, options); });
}

}  // namespace trestle::cli
