#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/schedules/find_schedule.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/routes.h"
#include "trestle/simulate/simulate.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/schedule_search.h"
#include "trestle/view/page/schedule_page.h"
#include "trestle/view/svg.h"

// "trestle schedules": every schedule for these ranks and micro-batches, and the best one.
namespace trestle::cli {

namespace {

struct SchedulesArguments {
  std::string recipe;
  std::optional<std::string> devices;
  int ranks = 4;
  int micro_batches = 8;
  std::string stages_per_rank = "1,2";
  std::string memory;
  std::string costs = "1,1,1";
  std::string activations;
  std::string weights;
  std::string message = "0";
  std::string out;
  std::string save_csv;
  bool json = false;
  Overwrite overwrite = Overwrite::Refuse;
};

std::vector<int> parse_stages_per_rank(const std::string& words) {
  std::vector<int> numbers;
  constexpr int most = 64;
  for (const std::string& word : split(words, ',')) {
    int number = 0;
    const auto end = trim(word);
    try {
      number = std::stoi(end);
    } catch (const std::exception&) {
    }
    if (number < 1 || number > most || text(number) != end)
      throw UsageError(text("--stages-per-rank: '", word, "' is not a number from 1 to ", most),
                       {.hint = "For example: --stages-per-rank 1,2,4"});
    numbers.push_back(number);
  }
  return numbers;
}

double parse_time(const std::string& word, const char* flag) {
  const double time = number_in(trim(word)).value_or(-1);
  if (!(time >= 0) || time > simulate::longest_time)
    throw UsageError(text(flag, ": '", word, "' is not a time from 0 to ", simulate::longest_time));
  return time;
}

// F, I and W of a rank's layers.
std::vector<double> parse_times(const std::string& words) {
  std::vector<double> times;
  for (const std::string& word : split(words, ',')) times.push_back(parse_time(word, "--costs"));
  if (times.size() != 3)
    throw UsageError(text("--costs has ", counted(std::ssize(times), "time"), "; give F,I,W"),
                     {.hint = "For example: --costs 1,1.2,0.9"});
  return times;
}

Bytes bytes_of(const std::string& words) { return words.empty() ? 0 : parse_bytes(words); }

// --memory; 0 = it was not given.
Bytes memory_of(const SchedulesArguments& arguments) {
  const Bytes memory = bytes_of(arguments.memory);
  if (!arguments.memory.empty() && memory < 1)
    throw UsageError(text("--memory ", arguments.memory, ": a rank needs at least one byte"),
                     {.hint = arguments.recipe.empty()
                                  ? "Leave it out for no limit."
                                  : "Leave it out for the budgets of the recipe's devices."});
  return memory;
}

// Stages of equal cost: those of a rank share its layers.
plan::ScheduleQuestion question_of(const SchedulesArguments& arguments) {
  const std::vector<double> times = parse_times(arguments.costs);
  const Bytes activations = bytes_of(arguments.activations), weights = bytes_of(arguments.weights);
  const double message = parse_time(arguments.message, "--message");
  plan::ScheduleQuestion question{
      .ranks = arguments.ranks,
      .micro_batches = arguments.micro_batches,
      .stages_per_rank = parse_stages_per_rank(arguments.stages_per_rank),
      .memory = memory_of(arguments)};
  question.stages =
      [=](const std::vector<int>& rank_of_stage) -> std::optional<plan::PlacedStages> {
    const double part =
        static_cast<double>(arguments.ranks) / static_cast<double>(rank_of_stage.size());
    const auto share = [part](Bytes bytes) {
      return static_cast<Bytes>(static_cast<double>(bytes) * part);
    };
    const simulate::StageCost stage{.forward = times[0] * part,
                                    .backward = (times[1] + times[2]) * part,
                                    .input_grad = times[1] * part,
                                    .weight_grad = times[2] * part,
                                    .recompute = times[0] * part,
                                    .forward_no_graph = times[0] * part,
                                    .persistent = share(weights),
                                    .saved = share(activations)};
    plan::PlacedStages placed{
        .costs = {.stages = std::vector(rank_of_stage.size(), stage), .routes = {}},
        .routes = schedule::main_lane(static_cast<int>(rank_of_stage.size()))};
    placed.costs.routes.assign(placed.routes.size(), {.seconds = message});
    return placed;
  };
  return question;
}

plan::ScheduleAnswer answer_of_recipe(const SchedulesArguments& arguments, const Verb& verb,
                                      const RunOptions& options) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  if (arguments.devices) recipe::set_field(recipe, "devices.use", *arguments.devices);
  if (verb.given("--micro-batches")) {
    recipe.pipeline.micro_batches = arguments.micro_batches;
    recipe.pipeline.split_size = 0;
  }
  const auto progress = train::make_progress(
      arguments.json ? train::ProgressStyle::Silent : train::progress_style_of(STDOUT_FILENO).first,
      train::Colours::Off, std::cout);
  const train::UserParts parts = user_parts_of(options);
  recipe = train::recipe_to_search(recipe);
  const train::LayerCosts costs =
      train::measure_layers(recipe, *progress, options.models, parts, SplitBackwards::Measure);
  return train::find_schedule(recipe, costs,
                              {.stages_per_rank = parse_stages_per_rank(arguments.stages_per_rank),
                               .memory = memory_of(arguments)},
                              parts);
}

bool has_bytes(const plan::ScheduleAnswer& answer) {
  return std::any_of(answer.fixed.begin(), answer.fixed.end(),
                     [](const auto& one) { return one.peak > 0; });
}

// Slots without a recipe's measured seconds.
std::string time_words(double seconds, bool measured) {
  if (measured) return format_duration(seconds);
  std::string words = text(std::round(seconds * 100) / 100);
  return words;
}

// The table is as wide as its columns need.
void print_schedules(const plan::ScheduleAnswer& answer, bool measured) {
  const bool bytes = has_bytes(answer);
  std::vector<std::vector<std::string>> rows = {
      {"schedule", "stages a rank", "step", "idle", "longest wait"}};
  if (bytes) rows[0].push_back("peak of a rank");
  const auto add = [&](const plan::SimulatedSchedule& one) {
    rows.push_back({one.name, text(one.stages_per_rank), time_words(one.seconds, measured),
                    text(std::lround(100 * schedule::idle_share_of_makespan(one.timeline)), " %"),
                    time_words(schedule::span_bubble(one.timeline), measured)});
    if (bytes)
      rows.back().push_back(text(format_bytes(one.peak), " (rank ", one.peak_rank, ")",
                                 one.fits ? "" : " does not fit"));
  };
  if (answer.best && answer.best->name == "auto") add(*answer.best);
  for (const auto& one : answer.fixed) add(one);
  std::vector<int> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(static_cast<std::size_t>(widths[i] - columns_of(row[i])), ' ');
      line += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    std::cout << line << "\n";
  }
}

void print_answer(const SchedulesArguments& arguments, const plan::ScheduleAnswer& answer,
                  Bytes memory, const std::vector<std::string>& written) {
  const bool measured = !arguments.recipe.empty();
  const int columns = columns_for_text(STDOUT_FILENO);
  const auto print = [&](const std::string& sentence) {
    std::cout << wrapped(sentence, columns, 2) << "\n";
  };
  const auto& any = answer.fixed.front();
  std::cout << folded(
                   text(counted(any.timeline.rank_count, "rank"), " · ",
                        counted(any.table.micro_batches, "micro-batch", "micro-batches"),
                        memory > 0 ? text(" · ", format_bytes(memory), " a rank") : "",
                        measured ? " · layers measured" : " · times assumed", ", steps simulated"),
                   columns, 2)
            << "\n";
  print_schedules(answer, measured);
  if (answer.best) {
    print(text("take ", answer.best->name,
               answer.best->made_from.empty() ? "" : ": " + answer.best->made_from, " (",
               counted(answer.simulated, "schedule"), " simulated)"));
    for (const std::string& line : answer.trades()) print(line);
  }
  for (const auto& [name, reason] : answer.refused) print(text("left out ", name, ": ", reason));
  for (const std::string& file : written) std::cout << "wrote " << file << "\n";
  std::cout << std::flush;
}

nlohmann::ordered_json json_of(const plan::SimulatedSchedule& one) {
  nlohmann::ordered_json json = {{"schedule", one.name},
                                 {"stages_per_rank", one.stages_per_rank},
                                 {"step", one.seconds},
                                 {"idle", schedule::idle_share_of_makespan(one.timeline)},
                                 {"makespan_bubble", schedule::makespan_bubble(one.timeline)},
                                 {"span_bubble", schedule::span_bubble(one.timeline)},
                                 {"peak_bytes", one.peak},
                                 {"peak_rank", one.peak_rank},
                                 {"fits", one.fits}};
  if (!one.made_from.empty()) json["made_from"] = one.made_from;
  return json;
}

void print_schedules_json(const SchedulesArguments& arguments, const plan::ScheduleAnswer& answer,
                          Bytes memory, const std::vector<std::string>& written) {
  const bool assumed = arguments.recipe.empty();
  nlohmann::ordered_json json = {{"times", assumed ? "assumed" : "measured"},
                                 {"unit", assumed ? "slots" : "seconds"},  // of steps and bubbles
                                 {"memory_bytes", memory},
                                 {"simulated", answer.simulated},
                                 {"best", nullptr},
                                 {"trades", answer.trades()},
                                 {"fixed", nlohmann::ordered_json::array()},
                                 {"left_out", nlohmann::ordered_json::object()},
                                 {"written", written}};
  if (answer.best) json["best"] = json_of(*answer.best);
  for (const auto& one : answer.fixed) json["fixed"].push_back(json_of(one));
  for (const auto& [name, reason] : answer.refused) json["left_out"][name] = reason;
  std::cout << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
            << std::endl;
}

// The best one above the fixed ones that it is compared with, on one axis.
std::vector<schedule::Timeline> panels_of(const plan::ScheduleAnswer& answer) {
  constexpr std::size_t most = 4;
  std::vector<schedule::Timeline> panels;
  if (answer.best && answer.best->name == "auto") panels.push_back(answer.best->timeline);
  for (const auto& one : answer.fixed)
    if (one.fits && panels.size() < most) panels.push_back(one.timeline);
  return panels;
}

// Throws UsageError if no schedule fits.
void need_best(const plan::ScheduleAnswer& answer) {
  if (answer.best) return;
  const plan::SimulatedSchedule& least = answer.fixed.front();
  throw UsageError(
      text("no schedule fits the memory of the ranks: ", least.name, " needs least, ",
           format_bytes(least.peak), " on rank ", least.peak_rank),
      {.hint = "Take smaller micro-batches, recompute, or use more ranks or more memory."});
}

// The files of an answer that has a best schedule.
std::vector<std::string> write_files(const SchedulesArguments& arguments,
                                     const plan::ScheduleAnswer& answer) {
  std::vector<std::string> written;
  if (!answer.best) return written;
  if (!arguments.out.empty()) {
    const std::string title =
        text("The fastest schedules of ", counted(answer.best->timeline.rank_count, "rank"), ", ",
             counted(answer.best->table.micro_batches, "micro-batch", "micro-batches"));
    const auto panels = panels_of(answer);
    write_file(arguments.out, std::filesystem::path(arguments.out).extension() == ".html"
                                  ? view::schedule_page(panels, {.title = title})
                                  : view::to_svg(panels, {.title = title}));
    written.push_back(arguments.out);
  }
  if (!arguments.save_csv.empty()) {
    write_file(arguments.save_csv, schedule::to_csv(answer.best->table));
    written.push_back(arguments.save_csv);
  }
  return written;
}

void check_schedules(const Verb& verb, const SchedulesArguments& arguments) {
  if (arguments.recipe.empty()) {
    refuse_without_effect(verb, {"--devices"}, "without a recipe");
    if (!arguments.memory.empty() && arguments.activations.empty())
      throw UsageError("--memory needs the bytes of activations",
                       {.hint = "Give --activations, those that a rank's layers keep of one "
                                "micro-batch, or a recipe."});
  } else {
    refuse_without_effect(verb, {"--ranks", "--costs", "--activations", "--weights", "--message"},
                          "with a recipe, whose layers are measured");
  }
  refuse_one_file({{arguments.out, "--out"}, {arguments.save_csv, "--save-csv"}});
  for (const auto& [file, flag] :
       {std::pair(arguments.out, "--out"), {arguments.save_csv, "--save-csv"}}) {
    if (file.empty()) continue;
    need_folder_for(file, flag);
    train::refuse_replacing({file}, arguments.overwrite, flag);
  }
  need_ending(arguments.save_csv, ".csv", "--save-csv");
  (void)memory_of(arguments);
  const std::filesystem::path ending = std::filesystem::path(arguments.out).extension();
  if (!arguments.out.empty() && ending != ".svg" && ending != ".html")
    throw UsageError(
        text("--out ", arguments.out, ": the picture's name must end in .svg or .html"));
}

int perform_schedules(const Verb& verb, const SchedulesArguments& arguments,
                      const RunOptions& options) {
  check_schedules(verb, arguments);
  const bool measured = !arguments.recipe.empty();
  const plan::ScheduleAnswer answer = measured ? answer_of_recipe(arguments, verb, options)
                                               : plan::find_schedule(question_of(arguments));
  const Bytes memory = memory_of(arguments);
  const std::vector<std::string> written = write_files(arguments, answer);
  if (arguments.json)
    print_schedules_json(arguments, answer, memory, written);
  else
    print_answer(arguments, answer, memory, written);
  need_best(answer);
  return 0;
}

}  // namespace

void add_schedules(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("schedules",
                           "Compare every pipeline schedule, and make the fastest one that fits");
  auto arguments = std::make_shared<SchedulesArguments>();
  verb.add("recipe", arguments->recipe,
           "Measure the layers of this recipe's model; without it all ranks take --costs")
      .type("RECIPE");
  const auto count = [&](const char* flag, int SchedulesArguments::*which, const char* type,
                         const char* help) {
    verb.add_number(
            flag, {1, std::numeric_limits<std::int16_t>::max()},
            [arguments, which](std::int64_t n) { (*arguments).*which = static_cast<int>(n); },
            text(help, " (default ", (*arguments).*which, ")"))
        .type(type);
  };
  count("--ranks", &SchedulesArguments::ranks, "P", "Number of ranks, without a recipe");
  verb.add("--devices", arguments->devices,
           "One for each rank, for example virtual:4x2GiB (default: the recipe's)")
      .type("DEVICES");
  count("--micro-batches", &SchedulesArguments::micro_batches, "M",
        "Number of micro-batches; of a recipe its own");
  verb.add("--stages-per-rank", arguments->stages_per_rank,
           "The numbers of stages of a rank to try (default 1,2)")
      .type("V,...");
  verb.add("--memory", arguments->memory,
           "The memory of a rank, for example 20GiB (default: no limit, or the devices' budgets)")
      .type("SIZE");
  verb.add("--costs", arguments->costs,
           "Times of F, I and W of a rank's layers and one micro-batch (default 1,1,1)")
      .type("F,I,W");
  verb.add("--activations", arguments->activations,
           "What a rank's layers keep of one micro-batch from F to W")
      .type("SIZE");
  verb.add("--weights", arguments->weights,
           "Parameters, gradients and optimizer state of a rank (default 0)")
      .type("SIZE");
  verb.add("--message", arguments->message,
           "Time of a message from one rank to another, in the unit of --costs (default 0)")
      .type("TIME");
  verb.add("--out", arguments->out, "The picture of the fastest ones, on one axis (.svg or .html)")
      .type("FILE");
  verb.add("--save-csv", arguments->save_csv, "Write the best schedule's table (.csv)")
      .type("FILE");
  verb.add_switch("--json", arguments->json, "Print one JSON object instead of the table");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.footer(
      examples(
          {"trestle schedules --ranks 8 --micro-batches 32 --memory 20GiB --activations 2GiB "
           "--weights 4GiB --out best.svg",
           "trestle schedules recipes/unet_quick.toml --devices virtual:2 --micro-batches 8"}) +
      "The search puts each W where its rank waits, for the forwards and backwards of every\n"
      "schedule. Run its table with --schedule FILE.csv.\n" +
      exit_codes());
  verb.action([verb, arguments, &options] { return perform_schedules(verb, *arguments, options); });
}

}  // namespace trestle::cli
