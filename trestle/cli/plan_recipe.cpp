#include "trestle/cli/plan_recipe.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/plan/machine/nodes.h"
#include "trestle/plan/search/memory_limit.h"
#include "trestle/plan/search/plan_report.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/planner/host_times.h"
#include "trestle/train/planner/planned_recipe.h"
#include "trestle/train/planner/recipe_machine.h"
#include "trestle/train/progress/run_plan.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/run_folder/result_files.h"

namespace trestle::cli {

namespace {

// A model on this machine, for files of residuals.
plan::Residual named_here(const recipe::Recipe& recipe) {
  const train::Environment here = train::environment();
  return {.model = recipe.name,
          .machine = text(here.cpu, ", ", counted(here.cores, "core")),
          .version = train::versions()};
}

// The machine with the range that --residuals gives.
plan::Machine machine_of(const Device& device, const RecipePlanArguments& arguments,
                         const plan::Residual& here) {
  plan::Machine machine = train::machine_of_device(device, arguments.machine);
  if (arguments.residuals.empty()) return machine;
  const auto residuals = plan::parse_residuals(read_file(arguments.residuals), arguments.residuals);
  plan::check_residuals(residuals, here, arguments.residuals);
  try {
    machine.transformer.spread = plan::spread_of(residuals);
  } catch (Error& error) {
    error.add_context("in " + arguments.residuals);
    throw;
  }
  return machine;
}

// For --ranks; empty for one process. `planned` is the strategy's recipe: one process runs all
// stages if its [mesh] has none. Stages on several nodes are ranks.
std::string ranks_of(const plan::Strategy& strategy, const recipe::Recipe& planned, bool threads) {
  if (planned.mesh.pipeline == 0 || strategy.devices() == 1) return "";
  return text(threads ? "threads:" : "", strategy.devices());
}

// How to run the recipe of a strategy that was written into a file. A launcher of each node starts
// the same number of ranks.
std::string words_to_run(const std::string& file, const plan::Strategy& strategy,
                         const recipe::Recipe& planned, bool threads) {
  const int ranks = strategy.devices();
  const std::int64_t on_node = planned.mesh.ranks_per_host;
  if (on_node == 0 || ranks <= on_node)
    return "run it: " + run_words(file, ranks_of(strategy, planned, threads));
  if (ranks % on_node != 0)
    return text("run it with ", counted(ranks, "rank"), ", ", on_node,
                " on each node but the last: ", run_words(file, ""));
  return text("run it on each node: trestle launch -n ", on_node, " --nodes ", ranks / on_node,
              " --node-rank K --rendezvous NODE0 -- ", run_words(file, ""));
}

void write_best(const RecipePlanArguments& arguments, const train::PlannedRecipe& model,
                const plan::PlanResult& result) {
  train::refuse_replacing({arguments.out}, arguments.output.overwrite, "--out");
  const plan::Strategy& best = result.best.front().strategy;
  const recipe::Recipe planned = model.recipe_of(best);
  write_file(arguments.out, recipe::to_toml(planned));
  if (arguments.output.json) return;
  std::cout << "wrote " << arguments.out << "      "
            << words_to_run(arguments.out, best, planned, arguments.verify.threads) << "\n";
}

std::vector<RunnablePlan> runnable(const RecipePlanArguments& arguments,
                                   const train::PlannedRecipe& model,
                                   const plan::PlanResult& result) {
  std::vector<RunnablePlan> plans;
  for (const plan::Plan& one : result.best) {
    if (std::ssize(plans) == arguments.verify.plans) break;
    const recipe::Recipe planned = model.recipe_of(one.strategy);
    plans.push_back({.plan = {.strategy = one.strategy,
                              .predicted_seconds = one.step.seconds,
                              .predicted_peak = one.worst.total()},
                     .recipe = recipe::to_toml(planned),
                     .ranks = ranks_of(one.strategy, planned, arguments.verify.threads)});
  }
  return plans;
}

// Cores that devices of this machine share. GPUs share none.
int shared_cores(const RecipePlanArguments& arguments, const Device& device, int devices) {
  if (device.torch.is_cuda()) {
    if (arguments.cores > 0)
      throw UsageError("--cores has no effect: the devices are GPUs", {.hint = "Leave it out."});
    return 0;
  }
  if (arguments.cores == 0) return core_count();
  // A rank's layers are measured with its share of the cores.
  const std::int64_t most = std::int64_t{most_threads()} * std::max(1, devices);
  if (arguments.cores > most)
    throw UsageError(text("--cores ", arguments.cores, " for ", counted(devices, "device"),
                          ": this process cannot run an operator on ",
                          arguments.cores / std::max(1, devices), " threads"),
                     {.hint = text("Give --cores 1 to ", most, ", or plan on the other machine.")});
  return static_cast<int>(arguments.cores);
}

// The recipe's [plan] gives what the command line leaves open.
void take_plan_section(const RecipePlanArguments& arguments, const recipe::Recipe::Plan& section,
                       plan::PlanRequest* request) {
  if (!arguments.goal_is_given) request->goal = plan::parse_goal(section.goal);
  if (!arguments.keep_is_given) {
    try {
      request->kept = plan::parse_kept(section.keep);
    } catch (Error& error) {
      error.add_context("in 'keep' of [plan] in " + arguments.recipe);
      throw;
    }
  }
  if (request->memory == 0 && !section.memory.empty())
    request->memory = plan::parse_memory_limit(section.memory, "'memory' in [plan]");
  if (request->devices == 0) request->devices = static_cast<int>(section.device_count);
}

// Nothing can be written or run where no strategy fits. The report says why nothing fits; JSON of
// one command is one object.
void check_found(const RecipePlanArguments& arguments, const plan::ReportOf& report) {
  if (!report.result.best.empty()) return;
  const auto refuse = [&](const std::string& flag, const char* what) {
    if (!arguments.output.json)
      std::cout << plan::plan_report(report, columns_for_text(STDOUT_FILENO));
    throw UsageError(text(flag, ": no strategy fits, so nothing was ", what),
                     {.hint = "Give more devices or memory."});
  };
  if (!arguments.out.empty()) refuse("--out " + arguments.out, "written");
  if (arguments.verify.plans > 0) refuse("--verify", "run");
}

// Puts the devices on the nodes that --nodes gives, joined by the recipe's link or by the file's.
void set_nodes(const RecipePlanArguments& arguments, int devices, plan::Machine* machine,
               recipe::Recipe* recipe) {
  if (arguments.nodes == 0) return;
  machine->devices_per_node = devices;
  *machine = plan::on_nodes(*machine, devices, arguments.nodes);
  recipe->mesh.ranks_per_host = 0;
  if (arguments.nodes == 1) {
    recipe->mesh.link.clear();
    return;
  }
  recipe->mesh.ranks_per_host = machine->devices_per_node;
  if (!recipe->mesh.link.empty()) return;
  if (!arguments.machine || arguments.machine->between.bandwidth.value <= 0)
    throw UsageError("--nodes needs the link between the nodes",
                     {.hint = "Set 'link' in [mesh] of the recipe, such as \"25Gbit,10us\", or "
                              "give --machine and a file with a link between nodes."});
  const plan::LinkFigures& between = arguments.machine->between;
  recipe->mesh.link =
      text(between.bandwidth.value / 1e6, "MB/s,", 1e6 * between.latency.value, "us");
}

}  // namespace

int plan_recipe(const RecipePlanArguments& arguments, const RunOptions& options) {
  if (!arguments.out.empty()) {
    train::refuse_replacing({arguments.out}, arguments.output.overwrite, "--out");
    refuse_one_file({{arguments.out, "--out"},
                     {arguments.output.svg, "--svg"},
                     {arguments.output.html, "--html"}});
  }
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  plan::PlanRequest request = arguments.request;
  request.top = std::max(request.top, static_cast<int>(arguments.verify.plans));
  take_plan_section(arguments, recipe.plan, &request);
  const plan::Residual here = named_here(recipe);
  check_residuals_to_save(arguments.verify, here);
  if (request.batch > 0) recipe.train.batch = request.batch;
  const std::vector<Device> devices = planned_devices(recipe.devices.use);
  if (request.devices == 0) request.devices = train::planned_count(recipe, devices);
  Device device = devices.at(0);
  if (request.memory > 0) device.budget = static_cast<Bytes>(request.memory);
  plan::Machine machine = machine_of(device, arguments, here);
  set_nodes(arguments, request.devices, &machine, &recipe);
  const int cores = shared_cores(arguments, device, request.devices);
  train::TrainHooks hooks;
  hooks.models = options.models;
  hooks.user_parts = user_parts_of(options);
  if (!device.torch.is_cuda()) train::install_planned_devices(recipe, request.devices);
  const auto& file = arguments.machine;
  const int on_node = request.devices / std::max(1, arguments.nodes);
  const train::HostTimes times =
      file ? train::host_times_of(*file, recipe, {on_node, cores}, arguments.machine_file)
           : train::measure_host_times(recipe, on_node, cores);
  const train::PlannedRecipe model(
      recipe, hooks,
      {.device = device,
       .count = request.devices,
       .times = times,
       .source_of_times =
           file ? train::words_of_host_times(*file, times, arguments.machine_file) : std::string(),
       .cores = cores,
       .says = [](const std::string& words) {
         if (isatty(STDERR_FILENO) != 0) std::cerr << words << std::endl;
       }});
  request.batch = model.batch();
  const plan::PlanResult result = plan::find_plans(model, machine, request);
  const plan::ReportOf report{model, machine, request, result};
  check_found(arguments, report);
  print_plan(report, arguments.output);
  if (!arguments.out.empty()) write_best(arguments, model, result);
  if (arguments.verify.plans == 0) return 0;
  return verify_and_print(runnable(arguments, model, result), arguments.verify, machine, here,
                          arguments.output.json);
}

}  // namespace trestle::cli
