#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/choose_answers.h"
#include "trestle/cli/choose_recipe.h"
#include "trestle/cli/planned_sizes.h"
#include "trestle/cli/questions.h"
#include "trestle/cli/verbs.h"
#include "trestle/simulate/link.h"

namespace trestle::cli {

namespace {

struct ChooseArguments {
  std::string model, devices, machine, links, memory;
  std::int64_t batch = 0;
  bool yes = false, json = false;
};

constexpr const char* usual_machine = "a100-8-per-node";

std::vector<std::string> installed_machines() {
  std::vector<std::string> names;
  std::error_code none;
  for (const std::filesystem::path& folder : plan::machine_folders())
    for (const auto& entry : std::filesystem::directory_iterator(folder, none))
      if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

void set_links(plan::Machine* machine, const std::string& links) {
  const simulate::Link link = simulate::parse_link(links);
  machine->between.bandwidth = {
      .value = link.bandwidth, .origin = plan::Origin::Assumed, .from = "given: " + links};
  machine->between.latency = {
      .value = link.latency, .origin = plan::Origin::Assumed, .from = "given: " + links};
}

int choose_by_sizes(const ChooseArguments& arguments, const ModelAnswer& model,
                    Questions* questions) {
  (void)model_by_sizes(model.form, model.sizes, {});  // bad answers before the first question
  if (!arguments.devices.empty()) (void)parse_device_count(arguments.devices);
  std::string machine_name = arguments.machine;
  if (machine_name.empty()) {
    const std::string gpu = first_gpu_name();
    const std::string known = machine_of_gpu(gpu, installed_machines());
    machine_name = questions->ask("machine", "a file, or a name in machines/",
                                  known.empty() ? usual_machine : known,
                                  known.empty() ? "no profile of a GPU here" : gpu);
  }
  plan::Machine machine = plan::read_machine(machine_name);
  const DeviceCount count = parse_device_count(
      !arguments.devices.empty()
          ? arguments.devices
          : questions->ask("devices", "8, or 2x4 for two machines with four each",
                           text(machine.devices_per_node), "a node of this machine"));
  if (count.per_node > 0) machine.devices_per_node = count.per_node;
  const std::string links =
      !arguments.links.empty()
          ? arguments.links
          : questions->ask("links", "between machines, for example 25Gbit/s",
                           format_bandwidth(machine.between.bandwidth.value), "the machine's");
  if (links != format_bandwidth(machine.between.bandwidth.value)) set_links(&machine, links);
  constexpr int examples_per_device = 8;
  std::int64_t batch = arguments.batch;
  if (batch == 0) {
    const DeviceCount answer = parse_device_count(
        questions->ask("batch", "examples of a step", text(examples_per_device * count.devices),
                       text(examples_per_device, " for each device")));
    batch = answer.devices;
  }
  plan::PlanRequest request{.devices = count.devices, .batch = batch};
  if (!arguments.memory.empty())
    request.memory = static_cast<double>(parse_bytes(arguments.memory));
  print_techniques(*model_by_sizes(model.form, model.sizes, machine), machine, request,
                   arguments.json);
  return 0;
}

int choose_by_recipe(const ChooseArguments& arguments, const ModelAnswer& model,
                     Questions* questions, const RunOptions& options) {
  const RecipeDefaults usual = defaults_of_recipe(model.recipe.string());
  const DeviceCount count =
      parse_device_count(!arguments.devices.empty()
                             ? arguments.devices
                             : questions->ask("devices", "4, or 2x2 for two machines with two each",
                                              text(usual.devices), usual.devices_from));
  const std::string links =
      !arguments.links.empty()
          ? arguments.links
          : questions->ask("links", "between machines, for example 1Gbit/s; none: one machine", "",
                           "");
  std::int64_t batch = arguments.batch;
  if (batch == 0)
    batch = parse_device_count(
                questions->ask("batch", "examples of a step", text(usual.batch), "the recipe's"))
                .devices;
  RecipeChoice choice{.recipe = model.recipe.string(),
                      .links = links,
                      .devices = count.devices,
                      .per_node = count.per_node,
                      .batch = batch,
                      .json = arguments.json};
  if (!arguments.memory.empty()) choice.memory = static_cast<double>(parse_bytes(arguments.memory));
  return choose_for_recipe(choice, options);
}

int perform_choose(const Verb& verb, const ChooseArguments& arguments, const RunOptions& options) {
  Questions questions(arguments.yes || arguments.json ? Questions::Asking::No
                                                      : Questions::Asking::OnTerminal);
  const std::string words =
      !arguments.model.empty()
          ? arguments.model
          : questions.ask("model", "a recipe, a known model such as llama-2-7b, or gpt:layers=...",
                          recipe_found_here(), "found here");
  if (words.empty())
    throw UsageError("choose needs a model: there is no recipe here",
                     {.hint = "For example: trestle choose llama-2-7b --devices 8."});
  const ModelAnswer model = parse_model_answer(words);
  if (model.recipe.empty()) return choose_by_sizes(arguments, model, &questions);
  refuse_without_effect(verb, {"--machine"}, "with a recipe, whose layers are measured here");
  need_file(model.recipe, "MODEL");
  return choose_by_recipe(arguments, model, &questions, options);
}

}  // namespace

void add_choose(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("choose", "Compare techniques of distributed training for a model");
  auto arguments = std::make_shared<ChooseArguments>();
  verb.add("model", arguments->model,
           text("A recipe, whose layers are measured here; or sizes: gpt:layers=...,hidden=..., "
                "llama:..., unet:image=192, resnet101; or one of ",
                known_model_names()))
      .type("MODEL");
  verb.add("--devices", arguments->devices,
           "How many, or 2x4 for two machines with four each (default: a machine's, or the "
           "recipe's)")
      .type("N");
  verb.add("--machine", arguments->machine,
           text("A machine's figures: a name in machines/ or a TOML file (default: that of a GPU "
                "here, or ",
                usual_machine, ")"))
      .type("MACHINE");
  verb.add("--links", arguments->links,
           "Between machines: a bandwidth, and a latency, for example 25Gbit/s,5us")
      .type("LINK");
  constexpr std::int64_t most = 1 << 20;
  verb.add_number(
          "--batch", {1, most}, [arguments](std::int64_t n) { arguments->batch = n; },
          "Examples of a step (default: the recipe's, or 8 for each device)")
      .type("N");
  verb.add("--memory", arguments->memory,
           "What a device may use, for example 24GiB (default: the machine's, or the recipe's)")
      .type("SIZE");
  verb.add_switch("--yes", arguments->yes, "Ask nothing: take the default of each question");
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(examples({"trestle choose", "trestle choose recipes/unet_quick.toml --devices 4",
                        "trestle choose llama-2-7b --devices 2x4 --machine rtx4090-4-per-node "
                        "--links 25Gbit/s --batch 64"}) +
              "\nEach technique is one row: its time and memory for this model on these devices, "
              "alone and at its best. Questions are asked on a terminal. trestle plan searches all "
              "combinations. See docs/which_one.md.\n" +
              exit_codes());
  verb.action([verb, arguments, &options] { return perform_choose(verb, *arguments, options); });
}

}  // namespace trestle::cli
