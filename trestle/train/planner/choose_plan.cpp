#include "trestle/train/planner/choose_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/device/threads.h"
#include "trestle/plan/search/best_plan.h"
#include "trestle/plan/search/memory_limit.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/planner/host_times.h"
#include "trestle/train/planner/planned_recipe.h"
#include "trestle/train/planner/recipe_machine.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/setup.h"

namespace trestle::train {

namespace {

plan::PlanRequest request_of(const recipe::Recipe& recipe, int devices) {
  plan::PlanRequest request{.devices = devices,
                            .batch = recipe.train.batch,
                            .goal = plan::parse_goal(recipe.plan.goal),
                            .kept = plan::parse_kept(recipe.plan.keep)};
  if (!recipe.plan.memory.empty())
    request.memory = plan::parse_memory_limit(recipe.plan.memory, "'memory' in [plan] (--memory)");
  return request;
}

// The fields of the recipe that the plan replaces, as "'balance' and 'recompute'".
std::string replaced_fields(const recipe::Recipe& given, const recipe::Recipe& chosen) {
  const recipe::Recipe usual;
  std::vector<std::string> names;
  for (const recipe::Field& field : recipe::recipe_fields()) {
    if (field.section != "mesh" && field.section != "pipeline") continue;
    if (field.get(given) != field.get(usual) && field.get(given) != field.get(chosen))
      names.push_back(text("'", field.key, "'"));
  }
  return join(names, ", ");
}

std::vector<std::string> with_title(const std::vector<std::string>& lines) {
  std::vector<std::string> titled;
  for (const std::string& line : lines)
    titled.push_back((titled.empty() ? "plan      " : "          ") + line);
  return titled;
}

// The devices of the chosen plan, where it leaves some of them idle.
void use_fewer_devices(int used, int threads, const std::vector<Device>& devices,
                       recipe::Recipe* recipe) {
  if (devices.at(0).torch.is_cuda()) {
    std::vector<std::string> names;
    for (int i = 0; i < used; ++i)
      names.push_back(device_name(devices.at(static_cast<std::size_t>(i)).torch));
    recipe->devices.use = join(names, ",");
  } else if (devices.at(0).torch.is_privateuseone() && recipe->devices.threads == 0) {
    recipe->devices.threads = threads;  // that the layers were measured with
  }
}

// Plans for `times`, which the ranks have measured together; nothing = they are measured here.
ChosenPlan choose_alone(const recipe::Recipe& recipe, const TrainHooks& hooks,
                        const ChooseOptions& options, const std::optional<HostTimes>& times) {
  const std::vector<Device> devices = planned_devices(recipe.devices.use);
  const int fixed = options.world != nullptr ? options.world->size() : options.ranks;
  const auto most = static_cast<int>(recipe.plan.device_count);
  const int count = fixed > 0 ? fixed : most > 0 ? most : planned_count(recipe, devices);
  if (devices[0].torch.is_cuda() && fixed == 0 && count > std::ssize(devices))
    throw UsageError(text("a plan for ", count, " devices, but [devices] names ", devices.size()),
                     {.hint = "Name the GPUs, for example --devices cuda:0,cuda:1, or cuda:all."});
  plan::PlanRequest request = request_of(recipe, count);
  Device device = devices[0];
  if (request.memory > 0) device.budget = static_cast<Bytes>(request.memory);
  const int threads = threads_of_each(count);
  std::optional<WorkerThreadsAsBefore> threads_as_before;
  if (device.torch.is_cpu() && recipe.devices.threads == 0) threads_as_before.emplace();
  if (!device.torch.is_cuda()) install_planned_devices(recipe, count);
  // Ranks that this process starts share its cores. The cores of a launcher's ranks are unknown.
  const int cores = device.torch.is_cuda() || times ? 0 : core_count();
  const PlannedRecipe model(without_plan(recipe), hooks,
                            {.device = device,
                             .count = count,
                             .times = times ? *times : measure_host_times(recipe, count, cores),
                             .cores = cores,
                             .says = options.says});
  request.batch = model.batch();
  const plan::Machine machine = machine_of_device(device);
  const plan::BestPlan best = plan::find_best_plan(
      model, machine, request, fixed > 0 ? plan::DeviceUse::All : plan::DeviceUse::Any);
  ChosenPlan chosen{.recipe = model.recipe_of(best.plan.strategy)};
  const plan::Strategy& strategy = best.plan.strategy;
  // Stages on the CPU are ranks: those of one process would take turns.
  if (device.torch.is_cpu() && strategy.pipeline > 1)
    chosen.recipe.mesh.pipeline = strategy.pipeline;
  if (strategy.devices() < count)
    use_fewer_devices(strategy.devices(),
                      cores > 0 ? std::max(1, cores / strategy.devices()) : threads, devices,
                      &chosen.recipe);
  std::vector<std::string> lines = plan::reasons_of(best, model, machine);
  if (strategy.devices() < count)
    lines.at(1) += text(" · ", strategy.devices(), " of ", count, " devices");
  const std::string replaced = replaced_fields(recipe, chosen.recipe);
  if (!replaced.empty()) lines.push_back(text("in place of the recipe's ", replaced));
  chosen.reasons = with_title(lines);
  chosen.report = plan::best_plan_json(best, model, machine) + "\n";
  return chosen;
}

std::string packed(const ChosenPlan& chosen) {
  return nlohmann::json{{"name", chosen.recipe.name},
                        {"recipe", recipe::to_toml(chosen.recipe)},
                        {"reasons", chosen.reasons},
                        {"report", chosen.report}}
      .dump();
}

ChosenPlan unpacked(const std::string& bytes) {
  const auto json = nlohmann::json::parse(bytes);
  ChosenPlan chosen{.recipe = recipe::parse_recipe(json["recipe"].get<std::string>(), "the plan")};
  chosen.recipe.name = json["name"].get<std::string>();
  chosen.reasons = json["reasons"].get<std::vector<std::string>>();
  chosen.report = json["report"].get<std::string>();
  return chosen;
}

}  // namespace

recipe::Recipe without_plan(recipe::Recipe recipe) {
  const recipe::Recipe usual;
  recipe.plan = usual.plan;
  recipe.mesh = usual.mesh;
  recipe.pipeline.balance = usual.pipeline.balance;
  recipe.pipeline.micro_batches = usual.pipeline.micro_batches;
  recipe.pipeline.split_size = usual.pipeline.split_size;
  recipe.pipeline.schedule = usual.pipeline.schedule;
  recipe.pipeline.stages_per_rank = usual.pipeline.stages_per_rank;
  recipe.pipeline.backward_order = usual.pipeline.backward_order;
  recipe.pipeline.recompute = usual.pipeline.recompute;
  recipe.pipeline.checkpoint = usual.pipeline.checkpoint;
  recipe.pipeline.checkpoint_segments = usual.pipeline.checkpoint_segments;
  recipe.pipeline.split_recomputed = usual.pipeline.split_recomputed;
  return recipe;
}

ChosenPlan choose_plan(const recipe::Recipe& recipe, const TrainHooks& hooks,
                       const ChooseOptions& options) {
  if (!recipe.train.deepspeed_config.empty())
    throw UsageError("'auto' in [plan] and a DeepSpeed file both choose how the state is sharded",
                     {.hint = "Leave one of them out."});
  const RunRanks ranks(options.world);
  if (ranks.alone()) return choose_alone(recipe, hooks, options, std::nullopt);
  const HostTimes times = measure_host_times(recipe, ranks);
  const std::string bytes =
      ranks.reports() ? packed(choose_alone(recipe, hooks, options, times)) : std::string();
  return unpacked(ranks.from_first(bytes));
}

}  // namespace trestle::train
