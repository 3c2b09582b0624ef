#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/choose_answers.h"
#include "trestle/cli/choose_recipe.h"
#include "trestle/cli/plan_machine.h"
#include "trestle/cli/planned_sizes.h"
#include "trestle/cli/questions.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/choose/techniques.h"
#include "trestle/plan/machine/nodes.h"
#include "trestle/plan/search/memory_limit.h"
#include "trestle/recipe/recipe.h"
#include "trestle/simulate/link.h"

namespace trestle::cli {

namespace {

struct ChooseArguments {
  std::string model, devices, links, memory, goal = "time";
  std::vector<std::string> keep;
  MachineArgument machine;
  std::int64_t batch = 0;
  bool yes = false, json = false;
};

constexpr const char* usual_machine = "a100-8-per-node";

// The arguments that every search takes.
struct Wanted {
  double memory = 0;  // bytes of a device; 0 = not given
  plan::Goal goal = plan::Goal::Time;
  plan::Kept kept = {};
};

std::vector<std::string> installed_machines() {
  std::vector<std::string> names;
  std::error_code none;
  for (const std::filesystem::path& folder : plan::machine_folders())
    for (const auto& entry : std::filesystem::directory_iterator(folder, none))
      if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

using Take = std::function<void(const std::string&)>;

// The word of the command line, or the answer to the question.
void give_or_ask(const std::string& given, Questions* questions, const Question& question,
                 const Take& take) {
  if (given.empty())
    questions->ask(question, take);
  else
    take(given);
}

ModelAnswer checked_model(const std::string& words) {
  if (words.empty())
    throw UsageError("choose needs a model: there is no recipe here",
                     {.hint = "For example: trestle choose llama-2-7b --devices 8."});
  ModelAnswer model = parse_model_answer(words);
  if (!model.recipe.empty()) {
    need_file(recipe::recipe_file(model.recipe), "MODEL");
    return model;
  }
  try {
    (void)model_by_sizes(model.form, model.sizes, {});
  } catch (const UsageError& error) {
    throw UsageError(without_plan_flags(error.what(), model.form));
  }
  return model;
}

plan::Machine machine_asked(const ChooseArguments& arguments, Questions* questions) {
  if (!arguments.machine.name.empty()) return read_planned_machine(arguments.machine);
  const std::string gpu = first_gpu_name();
  const std::string known = machine_of_gpu(gpu, installed_machines());
  plan::Machine machine;
  questions->ask(
      {.name = "machine",
       .about = "a file, or a name in machines/",
       .default_answer = known.empty() ? usual_machine : known,
       .why_default = known.empty() ? "no profile of a GPU here" : gpu},
      [&](const std::string& words) { machine = read_planned_machine({.name = words}); });
  return machine;
}

// Puts the devices on the machine's nodes, joined by the links.
DeviceCount devices_on(plan::Machine* machine, const ChooseArguments& arguments,
                       Questions* questions) {
  DeviceCount count;
  give_or_ask(arguments.devices, questions,
              {.name = "devices",
               .about = "8, or 2x4 for two machines with four each",
               .default_answer = text(machine->devices_per_node),
               .why_default = "a node of this machine"},
              [&](const std::string& words) {
                count = parse_device_count(words);
                if (count.nodes() > 0)
                  *machine = plan::on_nodes(*machine, count.devices, count.nodes());
              });
  const bool one_machine = count.devices <= machine->devices_per_node;
  if (one_machine && !arguments.links.empty()) refuse_links_of_one_machine(count.devices);
  if (one_machine) return count;
  const double bandwidth = machine->between.bandwidth.value;
  give_or_ask(arguments.links, questions,
              {.name = "links",
               .about = "between machines, for example 25Gbit/s",
               .default_answer = bandwidth > 0 ? format_bandwidth(bandwidth) : "",
               .why_default = "the machine's"},
              [&](const std::string& words) { set_link_between(machine, words); });
  return count;
}

void ask_for_batch(std::int64_t* batch, Questions* questions, std::int64_t usual,
                   const std::string& why) {
  if (*batch > 0) return;
  questions->ask({.name = "batch",
                  .about = "examples of a step",
                  .default_answer = text(usual),
                  .why_default = why},
                 [&](const std::string& words) { *batch = parse_batch_answer(words); });
}

int choose_by_sizes(const ChooseArguments& arguments, const ModelAnswer& model,
                    const Wanted& wanted, Questions* questions) {
  plan::Machine machine = machine_asked(arguments, questions);
  const DeviceCount count = devices_on(&machine, arguments, questions);
  plan::PlanRequest request{.devices = count.devices,
                            .batch = arguments.batch,
                            .goal = wanted.goal,
                            .kept = wanted.kept,
                            .memory = wanted.memory};
  constexpr int examples_per_device = 8;
  ask_for_batch(&request.batch, questions,
                std::min(std::int64_t{examples_per_device} * count.devices, plan::most_examples),
                text(examples_per_device, " for each device"));
  if (wanted.memory > 0)  // a cut into stages is made for the machine's memory
    machine.memory = {.value = wanted.memory, .from = "given: " + arguments.memory};
  print_techniques(*model_by_sizes(model.form, model.sizes, machine), machine, request,
                   arguments.json);
  return 0;
}

int choose_by_recipe(const ChooseArguments& arguments, const ModelAnswer& model,
                     const Wanted& wanted, Questions* questions, const RunOptions& options) {
  const RecipeDefaults usual = defaults_of_recipe(model.recipe.string());
  RecipeChoice choice{.recipe = model.recipe.string(),
                      .batch = arguments.batch,
                      .memory = wanted.memory,
                      .goal = wanted.goal,
                      .kept = wanted.kept,
                      .json = arguments.json};
  DeviceCount count;
  give_or_ask(arguments.devices, questions,
              {.name = "devices",
               .about = "4, or 2x2 for two machines with two each",
               .default_answer = text(usual.devices),
               .why_default = usual.devices_from},
              [&](const std::string& words) { count = parse_device_count(words); });
  choice.devices = count.devices;
  choice.per_node = count.per_node;
  const Take take_links = [&](const std::string& words) {
    choice.links = link_of_recipe(count, words, usual.link);
  };
  if (count.nodes() > 1)
    give_or_ask(arguments.links, questions,
                {.name = "links",
                 .about = "between machines, for example 1Gbit/s",
                 .default_answer = usual.link,
                 .why_default = "the recipe's"},
                take_links);
  else
    take_links(arguments.links);
  ask_for_batch(&choice.batch, questions, usual.batch, "the recipe's");
  return choose_for_recipe(choice, options);
}

Wanted wanted_of(const ChooseArguments& arguments) {
  Wanted wanted{.goal = plan::parse_goal(arguments.goal), .kept = plan::parse_kept(arguments.keep)};
  if (!arguments.memory.empty())
    wanted.memory = plan::parse_memory_limit(arguments.memory, "--memory");
  plan::check_kept_of_techniques(wanted.kept);
  return wanted;
}

int perform_choose(const Verb& verb, const ChooseArguments& arguments, const RunOptions& options) {
  Questions questions(arguments.yes || arguments.json ? Questions::Asking::No
                                                      : Questions::Asking::OnTerminal);
  if (arguments.machine.name.empty())
    refuse_without_effect(verb, {"--for-other-machine"}, "without --machine");
  // Wrong words before the first question.
  const Wanted wanted = wanted_of(arguments);
  if (!arguments.devices.empty()) (void)parse_device_count(arguments.devices);
  if (!arguments.links.empty()) (void)simulate::parse_link(arguments.links);
  ModelAnswer model;
  give_or_ask(arguments.model, &questions,
              {.name = "model",
               .about = "a recipe, a known model such as llama-2-7b, or gpt:layers=...",
               .default_answer = recipe_found_here(),
               .why_default = "found here"},
              [&](const std::string& words) { model = checked_model(words); });
  if (model.recipe.empty()) return choose_by_sizes(arguments, model, wanted, &questions);
  refuse_without_effect(verb, {"--machine", "--for-other-machine"},
                        "with a recipe, whose layers are measured here");
  if (wanted.goal == plan::Goal::Money)
    throw UsageError("--goal money: the devices here have no price",
                     {.hint = "Compare a model by its sizes with --machine and a file that has a "
                              "price, or take --goal time."});
  return choose_by_recipe(arguments, model, wanted, &questions, options);
}

}  // namespace

void add_choose(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("choose", "Compare techniques of distributed training for a model");
  auto arguments = std::make_shared<ChooseArguments>();
  verb.add("model", arguments->model,
           text("A recipe, whose layers are measured here; or sizes: gpt:layers=...,hidden=..., "
                "llama:..., unet or unet:image=192, resnet101; or one of ",
                known_model_names()))
      .type("MODEL");
  verb.add("--devices", arguments->devices,
           "How many, or 2x4 for two machines with four each (default: a machine's, or the "
           "recipe's)")
      .type("N");
  verb.add("--machine", arguments->machine.name,
           text("A machine's figures: a name in machines/ or a TOML file (default: that of a GPU "
                "here, or ",
                usual_machine, ")"))
      .type("MACHINE");
  verb.add_switch(
          "--for-other-machine", arguments->machine.for_other_machine,
          "Compare with a file that was measured on another machine or with another version")
      .rare();
  verb.add("--links", arguments->links,
           "Between several machines: a bandwidth, and a latency, for example 25Gbit/s,5us "
           "(default: "
           "the machine's, or the recipe's; a latency that is left out is the machine's)")
      .type("LINK");
  verb.add_number(
          "--batch", {1, plan::most_examples},
          [arguments](std::int64_t n) { arguments->batch = n; },
          "Examples of a step (default: the recipe's, or 8 for each device)")
      .type("N");
  verb.add("--goal", arguments->goal,
           "What is best: time, the fastest step (default); memory, the smallest peak; or money, "
           "the cheapest step, for which the machine has a price")
      .one_of({"time", "memory", "money"})
      .type("GOAL");
  verb.add("--keep", arguments->keep,
           "Compare only strategies with these: micro_batch=, recompute=none|selective|all, "
           "recompute_layers=, recompute_stages=, schedule=, chunks=, sequence_parallel=yes|no, "
           "precision=own|fp32|bf16|fp16|any, as trestle plan takes them")
      .type("KEY=VALUE,...");
  verb.add("--memory", arguments->memory,
           "What a device may use, for example 24GiB (default: the machine's, or the recipe's)")
      .type("SIZE");
  verb.add_switch("--yes", arguments->yes, "Ask nothing: take the default of each question");
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(examples({"trestle choose", "trestle choose recipes/unet_quick.toml --devices 4",
                        "trestle choose llama-2-7b --devices 2x4 --machine rtx4090-4-per-node "
                        "--links 25Gbit/s --batch 64"}) +
              "\nEach technique is one row: its time and memory for this model on these devices, "
              "alone and at its best by --goal. Questions are asked on a terminal. trestle plan "
              "searches all combinations. See docs/which_one.md.\n" +
              exit_codes());
  verb.action([verb, arguments, &options] { return perform_choose(verb, *arguments, options); });
}

}  // namespace trestle::cli
