#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/json.h"
#include "trestle/cli/verbs.h"
#include "trestle/cli/view_split.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/view/chrome_trace.h"
#include "trestle/view/labels.h"
#include "trestle/view/page/schedule_page.h"
#include "trestle/view/svg.h"
#include "trestle/view/text_grid.h"

namespace trestle::cli {

namespace {

namespace fs = std::filesystem;

struct ViewArguments {
  std::string run;
  std::string schedule;
  int stages = 4;
  int micro_batches = 8;
  int stages_per_rank = 0;  // 0 = what the schedule needs
  std::string backward_order = "reverse";
  std::string costs;
  std::string csv;
  std::string save_csv;
  std::string out;
  bool json = false;
  Overwrite overwrite = Overwrite::Refuse;
  SplitArguments split;
};

double cost(const std::string& word) {
  const double value = number_in(word).value_or(-1);
  if (!(value > 0) || value > simulate::longest_time)
    throw UsageError(
        text("--costs: '", word, "' is not a time above 0 and up to ", simulate::longest_time));
  return value;
}

// Parses "F,B" for all stages, or "F0,B0,F1,B1,...".
simulate::Costs parse_costs(const std::string& words, int stages) {
  simulate::Costs costs = simulate::unit_costs(stages);
  if (words.empty()) return costs;
  const std::vector<std::string> numbers = split(words, ',');
  if (numbers.size() != 2 && numbers.size() != 2 * static_cast<std::size_t>(stages))
    throw UsageError(text("--costs has ", counted(std::ssize(numbers), "time"),
                          "; give F,B for all stages, or F,B for each of the ", stages, " (",
                          2 * stages, " times)"));
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const std::size_t at = numbers.size() == 2 ? 0 : 2 * stage;
    auto& of = costs.stages[stage];
    of.forward = of.recompute = of.forward_no_graph = cost(trim(numbers[at]));
    of.backward = cost(trim(numbers[at + 1]));
    of.input_grad = of.weight_grad = of.backward / 2;
  }
  return costs;
}

// Whether the step is drawn action by action. A trace is not.
bool draws_cells(const ViewArguments& arguments) {
  if (arguments.out.empty()) return !arguments.json;
  return fs::path(arguments.out).extension() != ".json";
}

std::size_t computations(const schedule::Schedule& table) {
  std::ptrdiff_t count = 0;
  for (const auto& row : table.ranks)
    count += std::count_if(row.begin(), row.end(), [](const schedule::Action& action) {
      return schedule::is_compute(action.kind);
    });
  return static_cast<std::size_t>(count);
}

std::vector<schedule::Timeline> simulated(const ViewArguments& arguments,
                                          std::vector<std::string>& written) {
  schedule::Schedule table;
  if (!arguments.csv.empty()) {
    table = train::read_table(arguments.csv);
  } else {
    schedule::GenerateOptions options;
    options.stages = arguments.stages;
    options.micro_batches = arguments.micro_batches;
    options.backward_order = schedule::parse_backward_order(arguments.backward_order);
    options.stages_per_rank =
        schedule::stages_per_rank(arguments.schedule, arguments.stages_per_rank);
    table = schedule::generate(arguments.schedule, options);
  }
  if (!arguments.save_csv.empty()) {
    write_file(arguments.save_csv, schedule::to_csv(table));
    written.push_back(arguments.save_csv);
  }
  if (draws_cells(arguments)) view::check_size(computations(table));
  const simulate::Costs costs = parse_costs(arguments.costs, table.stages);
  return {simulate::simulate(table.lowered() ? table : schedule::lower(table, {}), costs)};
}

void check_ending(const fs::path& out) {
  const fs::path ending = out.extension();
  if (ending == ".svg" || ending == ".html" || ending == ".json" || ending == ".txt") return;
  throw UsageError(
      text(out.string(), ": a picture ends in .svg, .json (Chrome trace), .txt or .html (a page)"));
}

void write_picture(const fs::path& out, const std::vector<schedule::Timeline>& panels,
                   const std::string& title) {
  const std::string ending = out.extension().string();
  if (ending == ".svg") {
    write_file(out, view::to_svg(panels, {.title = title}));
  } else if (ending == ".html") {
    write_file(out, view::schedule_page(panels, {.title = title}));
  } else if (ending == ".json") {
    write_file(out, view::to_chrome_trace(panels));
  } else {
    std::string grids;
    for (const auto& panel : panels)
      grids += (panels.size() > 1 ? panel.title + "\n" : "") + view::to_text_grid(panel);
    write_file(out, grids);
  }
}

void print_written(const std::vector<std::string>& files) {
  for (const std::string& file : files) std::cout << "wrote " << file << "\n";
  std::cout << std::flush;
}

int view_run(const ViewArguments& arguments) {
  const train::RunFolder folder = train::open_run_folder(arguments.run);
  if (!fs::exists(folder.timeline()))
    throw UsageError(text(folder.path.string(), ": has no timeline yet"),
                     {.hint = "It appears with the first epoch."});
  std::vector<schedule::Timeline> panels;
  try {
    panels = view::from_chrome_trace(read_text_file(folder.timeline()));
  } catch (const FormatError& error) {
    throw FormatError(error.what(), {.file = folder.timeline().string()});
  }
  const fs::path out = arguments.out.empty() ? folder.timeline_picture() : fs::path(arguments.out);
  write_picture(out, panels, folder.path.filename().string());
  if (arguments.json) {
    std::cout << view_json(panels, {out.string()}) << std::endl;
    return 0;
  }
  const int columns = columns_for_text(STDOUT_FILENO);
  for (const auto& panel : panels)
    std::cout << folded(text(panel.title, ": ", view::summary(panel)), columns, 2) << "\n";
  for (const auto& panel : panels)
    if (!panel.whole_layers.empty())
      std::cout << folded(text("I runs the whole backward of ", join(panel.whole_layers, ", "),
                               ": it cannot be cut, so that W has nothing to compute there"),
                          columns, 2)
                << "\n";
  print_written({out.string()});
  if (fs::exists(folder.curve())) std::cout << "curves " << folder.curve().string() << std::endl;
  return 0;
}

void check_split_flags(const Verb& verb, const ViewArguments& arguments) {
  if (!arguments.split.split) {
    refuse_split_flags(verb);
    return;
  }
  if (arguments.run.empty())
    throw UsageError(
        "--split needs a recipe or a run folder",
        {.hint = "For example: trestle view recipes/gpt2.toml --split --mesh tensor=4"});
  if (const auto ending = std::filesystem::path(arguments.out).extension();
      ending == ".json" || ending == ".html")
    throw UsageError(text(arguments.out, ": the picture of a split ends in .svg or .txt"),
                     {.hint = "--json prints it as one JSON object."});
}

// Throws UsageError for arguments without effect, before anything is drawn.
void check_view(const Verb& verb, const ViewArguments& arguments) {
  check_split_flags(verb, arguments);
  const int sources = !arguments.run.empty() + !arguments.schedule.empty() + !arguments.csv.empty();
  if (sources != 1)
    throw UsageError(
        "give one of: RUN_FOLDER, --schedule NAME, --csv FILE, or RECIPE with --split",
        {.hint = "For example: trestle view --schedule 1f1b --stages 4 --micro-batches 8"});
  const std::vector<std::string> generated = {"--stages", "--stages-per-rank", "--micro-batches",
                                              "--backward-order"};
  if (fs::path(arguments.schedule).extension() == ".csv")
    throw UsageError(text("--schedule ", arguments.schedule, ": is a file, not a schedule's name"),
                     {.hint = text("Draw it with --csv ", arguments.schedule, ".")});
  if (!arguments.run.empty()) {
    const char* const form = arguments.split.split ? "with --split" : "with a run folder";
    refuse_without_effect(verb, generated, form);
    refuse_without_effect(verb, {"--costs", "--save-csv"}, form);
  } else if (!arguments.csv.empty()) {
    refuse_without_effect(verb, generated, "with --csv");
    need_file(arguments.csv, "--csv");
  } else if (arguments.schedule != "gpipe" && arguments.schedule != "looped_bfs") {
    refuse_without_effect(verb, {"--backward-order"}, "with --schedule " + arguments.schedule);
  }
  need_folder_for(arguments.out, "--out");
  if (!arguments.out.empty()) check_ending(arguments.out);
  need_folder_for(arguments.save_csv, "--save-csv");
  refuse_one_file({{arguments.out, "--out"}, {arguments.save_csv, "--save-csv"}});
  for (const auto& [file, flag] :
       {std::pair(arguments.out, "--out"), {arguments.save_csv, "--save-csv"}})
    if (!file.empty()) train::refuse_replacing({file}, arguments.overwrite, flag);
  need_ending(arguments.save_csv, ".csv", "--save-csv");
}

int perform_view(const Verb& verb, const ViewArguments& arguments, const RunOptions& options) {
  check_view(verb, arguments);
  if (arguments.split.split)
    return view_split(arguments.run, arguments.split, arguments.out, arguments.json, options);
  if (!arguments.run.empty()) return view_run(arguments);
  std::vector<std::string> written;
  const std::vector<schedule::Timeline> panels = simulated(arguments, written);
  if (!arguments.out.empty()) {
    write_picture(arguments.out, panels,
                  text(arguments.csv.empty() ? arguments.schedule : arguments.csv, ", ",
                       counted(panels[0].stages, "stage"), ", ",
                       counted(panels[0].micro_batches, "micro-batch", "micro-batches")));
    written.push_back(arguments.out);
  }
  if (arguments.json) {
    std::cout << view_json(panels, written) << std::endl;
    return 0;
  }
  const int columns = columns_for_text(STDOUT_FILENO);
  // A schedule that is too large to draw can still be written as a trace.
  const bool drawn = arguments.out.empty() || view::cell_count(panels) <= view::most_cells;
  std::cout << (drawn ? view::to_text_grid(panels[0], {.fold = columns})
                      : folded(view::summary(panels[0]), columns, 2) + "\n");
  print_written(written);
  return 0;
}

}  // namespace

void add_view(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "view",
      "Draw a schedule, the predicted and the measured step of a run, or the split of a model");
  auto arguments = std::make_shared<ViewArguments>();
  verb.add("run", arguments->run,
           "A run folder: draws its simulated and its measured step; with --split a recipe too")
      .type("RUN_FOLDER");
  std::string known;
  for (const auto& info : schedule::known_schedules())
    known += "\n  " + info.name + ": " + info.summary;
  verb.add("--schedule", arguments->schedule, "One of:" + known).type("NAME");
  const auto count = [&](const char* flag, int ViewArguments::*which, const char* type,
                         const char* help) {
    verb.add_number(
            flag, {1, std::numeric_limits<int>::max()},
            [arguments, which](std::int64_t n) { (*arguments).*which = static_cast<int>(n); },
            text(help, " (default ", (*arguments).*which, ")"))
        .type(type);
  };
  count("--stages", &ViewArguments::stages, "P", "Number of stages");
  verb.add_number(
          "--stages-per-rank", {1, std::numeric_limits<int>::max()},
          [arguments](std::int64_t n) { arguments->stages_per_rank = static_cast<int>(n); },
          "Number of stages on each rank (default what the schedule needs, or 2 if it takes any)")
      .type("V");
  count("--micro-batches", &ViewArguments::micro_batches, "M", "Number of micro-batches");
  verb.add("--backward-order", arguments->backward_order,
           "gpipe and looped_bfs: reverse or forward")
      .one_of(schedule::backward_order_names())
      .type("ORDER");
  verb.add("--costs", arguments->costs,
           "Times of a forward and a backward: F,B for all stages, or F,B,F,B,... for each")
      .type("F,B[,...]");
  verb.add("--csv", arguments->csv, "Draw the schedule in this file instead of --schedule")
      .type("FILE");
  verb.add("--save-csv", arguments->save_csv, "Also write the schedule as CSV (.csv)").type("FILE");
  add_split_flags(verb, arguments->split, options);
  verb.add("--out", arguments->out,
           "The picture: .svg, .txt, .html (a page with which to zoom and to follow a micro-batch) "
           "or .json (Chrome trace); of a split .svg or .txt")
      .type("FILE");
  verb.add_switch("--json", arguments->json, "Print one JSON object instead of the drawing");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.footer(
      examples({"trestle view --schedule 1f1b --stages 4 --micro-batches 8 --out 1f1b.svg",
                "trestle view --schedule gpipe --stages 2 --micro-batches 4 --costs 1,2,1.5,3",
                "trestle view --schedule zbv --stages 8 --micro-batches 8",
                "trestle view --csv mine.csv --out mine.html", "trestle view runs/unet_quick",
                "trestle view recipes/gpt2.toml --split --mesh tensor=4 --out split.svg"}) +
      "The drawing is folded to the width of the terminal, or to COLUMNS.\n" + exit_codes());
  verb.action([verb, arguments, &options] { return perform_view(verb, *arguments, options); });
}

}  // namespace trestle::cli
