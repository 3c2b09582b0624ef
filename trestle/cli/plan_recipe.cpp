#include "trestle/cli/plan_recipe.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/planner/host_times.h"
#include "trestle/train/planner/planned_recipe.h"
#include "trestle/train/planner/recipe_machine.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/run_folder/result_files.h"

namespace trestle::cli {

namespace {

void write_best(const RecipePlanArguments& arguments, const train::PlannedRecipe& model,
                const plan::PlanResult& result) {
  if (result.best.empty())
    throw UsageError(text("--out ", arguments.out, ": no strategy fits, so nothing was written"),
                     {.hint = "Give more devices or memory."});
  const plan::Strategy& best = result.best.front().strategy;
  write_file(arguments.out, recipe::to_toml(model.recipe_of(best)));
  if (arguments.output.json) return;
  const bool over_ranks = best.data > 1 || best.tensor > 1;
  std::cout << "wrote " << arguments.out << "      run it: trestle train " << arguments.out
            << (over_ranks ? text(" --ranks ", best.devices()) : std::string()) << "\n";
}

}  // namespace

int plan_recipe(const RecipePlanArguments& arguments, const RunOptions& options) {
  if (!arguments.out.empty())
    train::refuse_replacing({arguments.out}, arguments.output.overwrite, "--out");
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  plan::PlanRequest request = arguments.request;
  if (request.batch > 0) recipe.train.batch = request.batch;
  const std::vector<Device> devices = planned_devices(recipe.devices.use);
  if (request.devices == 0) request.devices = train::planned_count(recipe, devices);
  Device device = devices.at(0);
  if (request.memory > 0) device.budget = static_cast<Bytes>(request.memory);
  train::TrainHooks hooks;
  hooks.models = options.models;
  hooks.user_parts = user_parts_of(options);
  const auto& file = arguments.machine;
  const train::HostTimes times =
      file ? train::host_times_of(*file, recipe, request.devices, arguments.machine_file)
           : train::measure_host_times(recipe, std::min(request.devices, 8));
  const train::PlannedRecipe model(
      recipe, hooks,
      {.device = device,
       .count = request.devices,
       .times = times,
       .source_of_times =
           file ? train::words_of_host_times(*file, times, arguments.machine_file) : std::string(),
       .says = [](const std::string& words) {
         if (isatty(STDERR_FILENO) != 0) std::cerr << words << std::endl;
       }});
  request.batch = model.batch();
  const plan::Machine machine = train::machine_of_device(device, file);
  const plan::PlanResult result = plan::find_plans(model, machine, request);
  print_plan({model, machine, request, result}, arguments.output);
  if (!arguments.out.empty()) write_best(arguments, model, result);
  return 0;
}

}  // namespace trestle::cli
