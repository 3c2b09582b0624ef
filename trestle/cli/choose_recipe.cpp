#include "trestle/cli/choose_recipe.h"

#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/plan/choose/techniques_report.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/planner/host_times.h"
#include "trestle/train/planner/planned_recipe.h"
#include "trestle/train/planner/recipe_machine.h"
#include "trestle/train/run_folder/environment.h"

namespace trestle::cli {

void print_techniques(const plan::PlannedModel& model, const plan::Machine& machine,
                      const plan::PlanRequest& request, bool json) {
  const auto rows = plan::compare_techniques(model, machine, request);
  const plan::BestOfAll best = plan::best_of_all(rows, model, machine, request);
  const plan::TechniquesOf report{model, machine, request, rows, best};
  if (json)
    std::cout << plan::techniques_json(report) << "\n";
  else
    std::cout << plan::techniques_report(report, columns_for_text(STDOUT_FILENO));
}

RecipeDefaults defaults_of_recipe(const std::string& file) {
  const recipe::Recipe recipe = recipe::read_recipe(file);
  RecipeDefaults usual{.devices = train::planned_count(recipe, planned_devices(recipe.devices.use)),
                       .devices_from = "the recipe's",
                       .batch = recipe.train.batch,
                       .link = recipe.mesh.link};
  if (usual.devices > 1) return usual;
  usual.devices = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count())
                                              : train::environment().cores;
  usual.devices_from =
      torch::cuda::is_available() ? "the GPUs of this machine" : "the cores of this machine";
  return usual;
}

int choose_for_recipe(const RecipeChoice& choice, const RunOptions& options) {
  recipe::Recipe recipe = recipe::read_recipe(choice.recipe);
  recipe.train.batch = choice.batch;
  recipe.mesh.link = choice.links;
  if (choice.per_node > 0) recipe.mesh.ranks_per_host = choice.links.empty() ? 0 : choice.per_node;
  const std::int64_t on_host = recipe.mesh.ranks_per_host;
  const int on_node = on_host > 0
                          ? static_cast<int>(std::min<std::int64_t>(on_host, choice.devices))
                          : choice.devices;
  Device device = planned_devices(recipe.devices.use).at(0);
  if (choice.memory > 0) device.budget = static_cast<Bytes>(choice.memory);
  if (!device.torch.is_cuda()) train::install_planned_devices(recipe, choice.devices);
  train::TrainHooks hooks;
  hooks.models = options.models;
  hooks.user_parts = user_parts_of(options);
  // Ranks on the CPU share this machine's cores, unless they are on several machines.
  const int cores = device.torch.is_cuda() || !choice.links.empty() ? 0 : core_count();
  const train::PlannedRecipe model(recipe, hooks,
                                   {.device = device,
                                    .count = choice.devices,
                                    .times = train::measure_host_times(recipe, on_node, cores),
                                    .cores = cores,
                                    .says = [](const std::string& words) {
                                      if (isatty(STDERR_FILENO) != 0)
                                        std::cerr << words << std::endl;
                                    }});
  plan::Machine machine = train::machine_of_device(device);
  machine.devices_per_node = on_node;
  print_techniques(
      model, machine,
      {.devices = choice.devices, .batch = model.batch(), .goal = choice.goal, .kept = choice.kept},
      choice.json);
  return 0;
}

}  // namespace trestle::cli
