#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/plan_output.h"
#include "trestle/cli/plan_recipe.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::cli {

namespace {

struct PlanArguments {
  std::string recipe, gpt, machine = "a100-8-per-node", goal = "time", memory, out;
  std::vector<std::string> keep;
  std::int64_t devices = 0, batch = 0, top = 5;
  PlanOutput output;
};

plan::PlanRequest request_of(const PlanArguments& arguments) {
  plan::PlanRequest request{.devices = static_cast<int>(arguments.devices),
                            .batch = arguments.batch,
                            .goal = plan::parse_goal(arguments.goal),
                            .kept = plan::parse_kept(arguments.keep),
                            .top = static_cast<int>(arguments.top)};
  if (!arguments.memory.empty())
    request.memory = static_cast<double>(parse_bytes(arguments.memory));
  return request;
}

int plan_gpt(const PlanArguments& arguments) {
  if (arguments.devices == 0 || arguments.batch == 0)
    throw UsageError(text("--gpt needs ", arguments.devices == 0 ? "--devices" : "--batch"),
                     {.hint = "For example: trestle plan --gpt layers=24,hidden=2048,heads=16,"
                              "sequence=1024,vocabulary=51200 --devices 8 --batch 64."});
  const plan::GptModel gpt = plan::parse_gpt(arguments.gpt);
  const plan::Machine machine = plan::read_machine(arguments.machine);
  const plan::PlanRequest request = request_of(arguments);
  const plan::PlannedGpt model(gpt, machine);
  const plan::PlanResult result = plan::find_plans(model, machine, request);
  print_plan({model, machine, request, result}, arguments.output);
  return 0;
}

int perform_plan(const Verb& verb, const PlanArguments& arguments, const RunOptions& options) {
  check_plan_output(arguments.output);
  if (arguments.recipe.empty() == arguments.gpt.empty())
    throw UsageError(arguments.gpt.empty() ? "plan needs a model: a recipe, or a GPT by its sizes"
                                           : "plan takes a recipe or --gpt, not both",
                     {.hint = "For example: trestle plan recipes/unet_quick.toml --devices 4."});
  if (!arguments.gpt.empty()) {
    refuse_without_effect(verb, {"--out"}, "with --gpt");
    return plan_gpt(arguments);
  }
  refuse_without_effect(verb, {"--machine"}, "with a recipe, whose layers are measured here");
  need_file(arguments.recipe, "RECIPE");
  need_folder_for(arguments.out, "--out");
  return plan_recipe({.recipe = arguments.recipe,
                      .request = request_of(arguments),
                      .out = arguments.out,
                      .output = arguments.output},
                     options);
}

}  // namespace

void add_plan(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("plan", "Find the best way to train a model on many devices, on paper");
  auto arguments = std::make_shared<PlanArguments>();
  constexpr std::int64_t most = 1 << 20;
  verb.add("recipe", arguments->recipe,
           "A recipe: its layers are measured here, and its strategies are simulated")
      .type("RECIPE");
  verb.add("--gpt", arguments->gpt,
           "A GPT by its sizes: layers=,hidden=,heads=,sequence=,vocabulary=, and tied=no for a "
           "head with a table of its own; nothing is measured")
      .type("SIZES");
  verb.add("--machine", arguments->machine,
           "A machine's figures: a name in machines/ or a TOML file (default: a100-8-per-node)")
      .type("MACHINE");
  verb.add_number(
          "--devices", {1, most}, [arguments](std::int64_t n) { arguments->devices = n; },
          "The number of devices (default: those of the recipe)")
      .type("N");
  verb.add_number(
          "--batch", {1, 1 << 30}, [arguments](std::int64_t n) { arguments->batch = n; },
          "Examples of a step, of all replicas together (default: the recipe's)")
      .type("N");
  verb.add(
          "--keep", arguments->keep,
          "Search only strategies with these: tensor=, pipeline=, data=, level= (of ZeRO), "
          "replicate= (rows of shards, HSDP), offload=yes|no, micro_batch=, "
          "recompute=none|selective|all, recompute_layers= (the first blocks of a stage; 0: all), "
          "recompute_stages= (the first stages; 0: all), schedule=, chunks= (of interleaved 1f1b), "
          "sequence_parallel=yes|no, precision=own|fp32|bf16|fp16|any (the model's own unless "
          "given). If tensor, pipeline or data, micro_batch and recompute are given, it is one "
          "run: 1f1b, level 0 and the plain value of each other key unless given too")
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
          "--explain", {1, 1000}, [arguments](std::int64_t n) { arguments->output.explain = n; },
          "Print the bytes of each stage and the timeline of plan N")
      .type("N");
  verb.add("--svg", arguments->output.svg, "Draw the timeline of the best plan, or of --explain N")
      .type("FILE");
  verb.add("--out", arguments->out, "Write the best plan of a recipe as a recipe that runs")
      .type("FILE");
  add_overwrite_flag(verb, arguments->output.overwrite);
  verb.add_switch("--json", arguments->output.json, "Print one JSON object");
  verb.footer(
      examples({"trestle plan recipes/unet_quick.toml --devices 4 --memory 256MiB --out best.toml",
                "trestle plan --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200 "
                "--devices 512 --batch 1536",
                "trestle plan --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200 "
                "--devices 512 --batch 1536 --keep "
                "tensor=8,pipeline=2,micro_batch=4,recompute=all --json",
                "trestle plan --gpt layers=32,hidden=4096,heads=32,sequence=2048,vocabulary=32000 "
                "--devices 8 --batch 64 --memory 24GiB"}) +
      "\nNo step runs: times are simulated, from measured layers of a recipe or from the machine's "
      "figures. See docs/plan.md.\n" +
      exit_codes());
  verb.action([verb, arguments, &options] { return perform_plan(verb, *arguments, options); });
}

}  // namespace trestle::cli
