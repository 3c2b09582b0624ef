#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/search/plan_report.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/view/labels.h"
#include "trestle/view/svg.h"
#include "trestle/view/text_grid.h"

namespace trestle::cli {

namespace {

struct PlanArguments {
  std::string gpt, machine = "a100-8-per-node", goal = "time", memory;
  std::vector<std::string> keep;
  std::int64_t devices = 0, batch = 0, top = 5;
  std::int64_t explain = 0;  // the plan's number; 0 = none
  std::string svg;
  Overwrite overwrite = Overwrite::Refuse;
  bool json = false;
};

const plan::Plan& plan_number(const plan::PlanResult& result, std::int64_t number,
                              const std::string& flag) {
  if (number > std::ssize(result.best))
    throw UsageError(text(flag, ": there is no plan ", number, ", only ",
                          counted(std::ssize(result.best), "plan")),
                     {.hint = "Raise --top, or give a smaller number."});
  return result.best[static_cast<std::size_t>(number - 1)];
}

void check_picture(const PlanArguments& arguments) {
  if (arguments.svg.empty()) return;
  if (std::filesystem::path(arguments.svg).extension() != ".svg")
    throw UsageError(text("--svg ", arguments.svg, ": the file's name must end in .svg"));
  need_folder_for(arguments.svg, "--svg");
  train::refuse_replacing({arguments.svg}, arguments.overwrite, "--svg");
}

int perform_plan(const PlanArguments& arguments) {
  check_picture(arguments);
  const plan::GptModel gpt = plan::parse_gpt(arguments.gpt);
  const plan::Machine machine = plan::read_machine(arguments.machine);
  plan::PlanRequest request{.devices = static_cast<int>(arguments.devices),
                            .batch = arguments.batch,
                            .goal = plan::parse_goal(arguments.goal),
                            .kept = plan::parse_kept(arguments.keep),
                            .top = static_cast<int>(arguments.top)};
  if (!arguments.memory.empty())
    request.memory = static_cast<double>(parse_bytes(arguments.memory));
  const plan::PlannedGpt model(gpt, machine);
  const plan::PlanResult result = plan::find_plans(model, machine, request);
  const plan::ReportOf report{model, machine, request, result};
  const int columns = columns_for_text(STDOUT_FILENO);
  if (arguments.json)
    std::cout << plan::plan_json(report) << "\n";
  else
    std::cout << plan::plan_report(report, columns);
  if (arguments.explain > 0 && !arguments.json) {
    const plan::Plan& chosen = plan_number(result, arguments.explain, "--explain");
    std::cout << "\n"
              << arguments.explain << "  " << to_string(chosen.strategy) << "\n"
              << plan::explained(report, chosen, columns);
    const auto timeline = plan::timeline_of_plan(report, chosen);
    if (view::cell_count({timeline}) <= view::most_cells)
      std::cout << view::to_text_grid(timeline, {.columns = columns});
  }
  if (!arguments.svg.empty()) {
    const plan::Plan& chosen =
        plan_number(result, std::max<std::int64_t>(arguments.explain, 1), "--svg");
    write_file(arguments.svg, view::to_svg({plan::timeline_of_plan(report, chosen)}));
    if (!arguments.json) std::cout << "wrote " << arguments.svg << "\n";
  }
  return 0;
}

}  // namespace

void add_plan(Verb app) {
  Verb verb = app.add_verb("plan", "Find the best way to train a model on many devices, on paper");
  auto arguments = std::make_shared<PlanArguments>();
  constexpr std::int64_t most = 1 << 20;
  verb.add("--gpt", arguments->gpt,
           "A GPT by its sizes: layers=,hidden=,heads=,sequence=,vocabulary=, and tied=no for a "
           "head with a table of its own")
      .required()
      .type("SIZES");
  verb.add("--machine", arguments->machine,
           "A machine's figures: a name in machines/ or a TOML file (default: a100-8-per-node)")
      .type("MACHINE");
  verb.add_number(
          "--devices", {1, most}, [arguments](std::int64_t n) { arguments->devices = n; },
          "The number of devices")
      .required()
      .type("N");
  verb.add_number(
          "--batch", {1, 1 << 30}, [arguments](std::int64_t n) { arguments->batch = n; },
          "Examples of a step, of all replicas together")
      .required()
      .type("N");
  verb.add("--keep", arguments->keep,
           "Search only strategies with these: tensor=, pipeline=, data=, level= (of ZeRO), "
           "micro_batch=, recompute=none|selective|all, schedule=, chunks= (of interleaved 1f1b), "
           "sequence_parallel=yes|no. If tensor, pipeline or data, micro_batch and recompute are "
           "given, it is one run: 1f1b, level 0 and sequence_parallel=no unless given too")
      .type("KEY=VALUE,...");
  verb.add("--goal", arguments->goal,
           "What is best: time, the fastest step (default); memory, the smallest peak; or money, "
           "the cheapest step, for which the machine has a price")
      .one_of({"time", "memory", "money"})
      .type("GOAL");
  verb.add("--memory", arguments->memory,
           "What a device may use, for example 40GiB (default: the machine's)")
      .type("SIZE");
  verb.add_number(
          "--top", {1, 1000}, [arguments](std::int64_t n) { arguments->top = n; },
          "How many plans are printed (default: 5)")
      .type("K");
  verb.add_number(
          "--explain", {1, 1000}, [arguments](std::int64_t n) { arguments->explain = n; },
          "Print the bytes of each stage and the timeline of plan N")
      .type("N");
  verb.add("--svg", arguments->svg, "Draw the timeline of the best plan, or of --explain N")
      .type("FILE");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(
      examples({"trestle plan --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200 "
                "--devices 512 --batch 1536",
                "trestle plan --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200 "
                "--devices 512 --batch 1536 --keep "
                "tensor=8,pipeline=2,micro_batch=4,recompute=all --json",
                "trestle plan --gpt layers=32,hidden=4096,heads=32,sequence=2048,vocabulary=32000 "
                "--devices 8 --batch 64 --memory 24GiB"}) +
      "\nNothing runs: times are simulated from the machine's figures, bytes are formulas. See "
      "docs/plan.md.\n" +
      exit_codes());
  verb.action([arguments] { return perform_plan(*arguments); });
}

}  // namespace trestle::cli
