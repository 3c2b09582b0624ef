#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/plan_machine.h"
#include "trestle/cli/plan_output.h"
#include "trestle/cli/plan_recipe.h"
#include "trestle/cli/planned_sizes.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/machine/nodes.h"
#include "trestle/plan/search/memory_limit.h"

namespace trestle::cli {

namespace {

struct PlanArguments {
  std::string recipe, goal, memory, out;
  std::string gpt, llama, model, unet, resnet101;  // a model by its sizes
  MachineArgument machine;
  std::vector<std::string> keep;
  std::int64_t devices = 0, batch = 0, nodes = 0, top = 5, cores = 0;
  PlanOutput output;
  std::string residuals, ranks = "processes";
  VerifyArguments verify;
};

plan::PlanRequest request_of(const PlanArguments& arguments) {
  plan::PlanRequest request{
      .devices = static_cast<int>(arguments.devices),
      .batch = arguments.batch,
      .goal = plan::parse_goal(arguments.goal.empty() ? "time" : arguments.goal),
      .kept = plan::parse_kept(arguments.keep),
      .top = static_cast<int>(arguments.top)};
  if (!arguments.memory.empty())
    request.memory = plan::parse_memory_limit(arguments.memory, "--memory");
  if (!arguments.output.html.empty()) request.map = plan::MapRequest();
  return request;
}

// The flags that give a model by its sizes, and their values.
std::vector<std::pair<std::string, std::string>> sizes_given(const PlanArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& [flag, value] : {std::pair("--gpt", &arguments.gpt),
                                    {"--llama", &arguments.llama},
                                    {"--model", &arguments.model},
                                    {"--unet", &arguments.unet},
                                    {"--resnet101", &arguments.resnet101}})
    if (!value->empty()) given.emplace_back(flag, *value);
  return given;
}

int plan_by_sizes(const PlanArguments& arguments, const std::string& flag,
                  const std::string& sizes) {
  if (arguments.devices == 0 || arguments.batch == 0)
    throw UsageError(text(flag, " needs ", arguments.devices == 0 ? "--devices" : "--batch"),
                     {.hint = "For example: trestle plan --gpt layers=24,hidden=2048,heads=16,"
                              "sequence=1024,vocabulary=51200 --devices 8 --batch 64."});
  (void)model_by_sizes(flag.substr(2), sizes, {});  // a bad size before a machine that is missing
  MachineArgument named = arguments.machine;
  if (named.name.empty()) named.name = "a100-8-per-node";
  plan::Machine machine = read_planned_machine(named);
  const plan::PlanRequest request = request_of(arguments);
  if (request.memory > 0) machine.memory.value = request.memory;  // cuts keep within it
  if (arguments.nodes > 0)
    machine = plan::on_nodes(std::move(machine), static_cast<int>(arguments.devices),
                             static_cast<int>(arguments.nodes));
  const auto model = model_by_sizes(flag.substr(2), sizes, machine);
  const plan::PlanResult result = plan::find_plans(*model, machine, request);
  print_plan({*model, machine, request, result}, arguments.output);
  return 0;
}

// Throws UsageError for flags of --verify that contradict each other or have no effect.
void check_verify_flags(const Verb& verb, const PlanArguments& arguments) {
  if (arguments.verify.plans == 0)
    refuse_without_effect(verb,
                          {"--rounds", "--steps", "--ranks", "--launcher", "--save-residuals"},
                          "without --verify");
  const bool launched = verb.given("--launcher");
  if (launched && arguments.ranks == "threads")
    throw UsageError("--ranks threads has no effect with --launcher, which starts processes",
                     {.hint = "Leave one of them out."});
  if (arguments.nodes > 1 && arguments.verify.plans > 0 && !launched)
    throw UsageError("--verify has no effect with --nodes: it runs plans on this machine",
                     {.hint = "Give a command that starts ranks on all nodes, such as --launcher "
                              "\"srun -n {ranks}\", or leave --verify out."});
}

int perform_plan(const Verb& verb, const PlanArguments& arguments, const RunOptions& options) {
  check_plan_output(arguments.output);
  const auto sizes = sizes_given(arguments);
  if (sizes.empty() && arguments.recipe.empty())
    throw UsageError("plan needs a model: a recipe, or a model by its sizes",
                     {.hint = "For example: trestle plan recipes/unet_quick.toml --devices 4."});
  if (sizes.size() + (arguments.recipe.empty() ? 0 : 1) > 1)
    throw UsageError(arguments.recipe.empty()
                         ? text("plan takes one of ", sizes[0].first, " and ", sizes[1].first)
                         : text("plan takes a recipe or ", sizes[0].first, ", not both"));
  if (arguments.machine.name.empty())
    refuse_without_effect(verb, {"--for-other-machine"}, "without --machine");
  if (!sizes.empty()) {
    refuse_without_effect(verb,
                          {"--out", "--cores", "--residuals", "--verify", "--rounds", "--steps",
                           "--ranks", "--launcher", "--save-residuals"},
                          "with " + sizes[0].first);
    return plan_by_sizes(arguments, sizes[0].first, sizes[0].second);
  }
  check_verify_flags(verb, arguments);
  need_folder_for(arguments.out, "--out");
  std::optional<plan::Machine> machine;
  if (!arguments.machine.name.empty()) machine = read_planned_machine(arguments.machine);
  if (!arguments.residuals.empty()) need_file(arguments.residuals, "--residuals");
  if (!arguments.verify.save_residuals.empty())
    need_folder_for(arguments.verify.save_residuals, "--save-residuals");
  VerifyArguments verify = arguments.verify;
  verify.threads = arguments.ranks == "threads";
  return plan_recipe({.recipe = arguments.recipe,
                      .request = request_of(arguments),
                      .keep_is_given = !arguments.keep.empty(),
                      .goal_is_given = !arguments.goal.empty(),
                      .machine = std::move(machine),
                      .machine_file = arguments.machine.name,
                      .out = arguments.out,
                      .output = arguments.output,
                      .cores = arguments.cores,
                      .nodes = static_cast<int>(arguments.nodes),
                      .residuals = arguments.residuals,
                      .verify = verify},
                     options);
}

void add_verify_flags(Verb& verb, const std::shared_ptr<PlanArguments>& arguments) {
  verb.add_number(
          "--cores", {1, 1 << 20}, [arguments](std::int64_t n) { arguments->cores = n; },
          "Cores that a recipe's virtual devices or CPU ranks share (default: this machine's); the "
          "number of devices gives each its own")
      .type("N");
  verb.add_number(
          "--verify", {1, 1000}, [arguments](std::int64_t n) { arguments->verify.plans = n; },
          "Run the K best plans of a recipe, here or by --launcher, and print measured beside "
          "simulated figures")
      .type("K");
  verb.add_number(
          "--rounds", {1, 1000}, [arguments](std::int64_t n) { arguments->verify.rounds = n; },
          "How often --verify runs each plan, in turn with the other plans (default: 5)")
      .type("N");
  verb.add_number(
          "--steps", {1, 100'000}, [arguments](std::int64_t n) { arguments->verify.steps = n; },
          "Steps of a run of --verify that are timed, after two to warm up (default: 5)")
      .type("N");
  verb.add("--ranks", arguments->ranks,
           "How a plan over ranks is run: processes (default), or threads of one process")
      .one_of({"processes", "threads"})
      .type("KIND");
  verb.add(
          "--launcher", arguments->verify.launcher,
          "Start the ranks of --verify's plans with this command, such as \"mpirun -n {ranks}\" or "
          "\"srun -n {ranks}\". All its machines must see TMPDIR, where the recipes are")
      .type("WORDS");
  verb.add("--save-residuals", arguments->verify.save_residuals,
           "Add what --verify measured to a file for --residuals")
      .type("FILE");
  verb.add("--residuals", arguments->residuals,
           "Take the range of a prediction from a file that --save-residuals wrote on this machine")
      .type("FILE");
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
           "A GPT by its sizes: layers=,hidden=,heads=,sequence=,vocabulary=. Optional: tied=no "
           "for a head with a table of its own, attention=flash, kv_heads=, feed_forward=. Nothing "
           "is measured")
      .type("SIZES");
  verb.add("--llama", arguments->llama,
           "A model in the manner of Llama: layers=, hidden=, heads=, feed_forward=, sequence=, "
           "vocabulary=. Optional: kv_heads=, tied=yes")
      .type("SIZES");
  verb.add("--model", arguments->model,
           text("A well-known model, and sizes that differ: llama-3-8b,sequence=4096. One of ",
                known_model_names()))
      .type("NAME");
  verb.add("--unet", arguments->unet,
           "A U-Net by its sizes, all optional: depth=,convolutions= (of a level),base= "
           "(channels),image=,input_channels=,output_channels=")
      .type("SIZES");
  verb.add("--resnet101", arguments->resnet101, "ResNet-101: image=224,classes=1000").type("SIZES");
  verb.add("--machine", arguments->machine.name,
           "A machine's figures: a name in machines/ or a TOML file (default: a100-8-per-node). "
           "With a recipe: a file of trestle calibrate, for its messages and optimizers (default: "
           "messages between threads are measured for the plan)")
      .type("MACHINE");
  verb.add_switch("--for-other-machine", arguments->machine.for_other_machine,
                  "Plan with a file that was measured on another machine or with another version")
      .rare();
  verb.add_number(
          "--devices", {1, most}, [arguments](std::int64_t n) { arguments->devices = n; },
          "The number of devices (default: those of the recipe)")
      .type("N");
  verb.add_number(
          "--nodes", {1, most}, [arguments](std::int64_t n) { arguments->nodes = n; },
          "The devices lie in this number of nodes, the same number in each (default: full nodes "
          "of the machine)")
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
  verb.add("--html", arguments->output.html,
           "Write a page for a browser: a table of plans that sorts and filters, their bytes and "
           "timelines, what does not fit, and time against memory. It needs no network")
      .type("FILE");
  verb.add("--out", arguments->out, "Write the best plan of a recipe as a recipe that runs")
      .type("FILE");
  add_verify_flags(verb, arguments);
  add_overwrite_flag(verb, arguments->output.overwrite);
  verb.add_switch("--json", arguments->output.json, "Print one JSON object");
  verb.footer(
      examples({"trestle plan recipes/unet_quick.toml --devices 4 --memory 256MiB --out best.toml",
                "trestle plan recipes/unet_quick.toml --devices 2 --verify 4",
                "trestle plan --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200 "
                "--devices 512 --batch 1536",
                "trestle plan --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200 "
                "--devices 512 --batch 1536 --keep "
                "tensor=8,pipeline=2,micro_batch=4,recompute=all --json",
                "trestle plan --gpt layers=32,hidden=4096,heads=32,sequence=2048,vocabulary=32000 "
                "--devices 8 --batch 64 --memory 24GiB --html plans.html",
                "trestle plan --model llama-2-7b --machine rtx4090-4-per-node --devices 8 "
                "--batch 64",
                "trestle plan --unet image=192 --machine p40-8-per-node --devices 4 --batch 512"}) +
      "\nNo step runs without --verify: times are simulated, from measured layers of a recipe or "
      "from the machine's "
      "figures. See docs/plan.md.\n" +
      exit_codes());
  verb.action([verb, arguments, &options] { return perform_plan(verb, *arguments, options); });
}

}  // namespace trestle::cli
