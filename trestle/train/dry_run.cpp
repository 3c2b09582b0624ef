#include "trestle/train/dry_run.h"

#include <algorithm>
#include <set>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/fit.h"
#include "trestle/train/chosen_schedule.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/layers_on_paper.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/schedule_search.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

// The devices of the first pipeline that [mesh] lays over the ranks; each rank has one.
std::vector<Device> devices_of_pipeline(const recipe::Recipe& recipe,
                                        const std::vector<Device>& devices) {
  const auto parts = static_cast<std::size_t>(recipe.mesh.ranks_of_stage());
  const auto stages = static_cast<std::size_t>(recipe.mesh.pipeline);
  if (parts == 1 && stages <= 1) return devices;
  if (devices.size() == 1) return {std::max<std::size_t>(stages, 1), devices[0]};
  const std::size_t ranks = stages > 0 ? stages * parts : devices.size();
  if (devices.size() != ranks || ranks % parts != 0)
    throw UsageError(
        text(counted(std::ssize(devices), "device"), " for the ranks of [mesh], which are ",
             stages > 0 ? text(ranks) : text("a multiple of ", parts)),
        {.hint = text("Give one device for each rank, for example --devices virtual:",
                      stages > 0 ? ranks : parts, ".")});
  std::vector<Device> own;  // the ranks of a pipeline are not next to each other
  for (std::size_t stage = 0; stage < ranks / parts; ++stage) own.push_back(devices[stage * parts]);
  return own;
}

// "mesh pipeline=2,replicate=1,shard=2 · shard level gradients · "
std::string mesh_words(const recipe::Recipe::Mesh& mesh) {
  if (mesh.ranks_of_stage() == 1) return "";
  std::string words = text("mesh ", mesh.pipeline > 0 ? text("pipeline=", mesh.pipeline, ",") : "",
                           "replicate=", mesh.replicate);
  if (mesh.shard > 1) words += text(",shard=", mesh.shard);
  if (mesh.tensor > 1) words += text(",tensor=", mesh.tensor);
  if (mesh.shard > 1) words += text(" · shard level ", mesh.shard_level);
  if (mesh.sequence_parallel) words += " · sequence parallel";
  return words + " · ";
}

std::vector<int> cut_of(const recipe::Recipe& recipe, const LayerCosts& costs) {
  if (!recipe.pipeline.balance.empty())
    return {recipe.pipeline.balance.begin(), recipe.pipeline.balance.end()};
  try {
    return plan::balance_within(costs.profile, costs.budgets, costs.sizes, device_numbers(costs));
  } catch (const UsageError&) {  // nothing fits: then what comes nearest
    return plan::balance_by_size(costs.profile, static_cast<int>(costs.budgets.size()),
                                 costs.sizes);
  }
}

bool each_on_its_own(const std::vector<Device>& devices, std::size_t ranks) {
  std::set<int> numbers;
  for (const Device& device : devices)
    if (device.torch.is_privateuseone()) numbers.insert(device.torch.index());
  return numbers.size() == ranks;
}

std::string suggestion(const recipe::Recipe& recipe, const LayerCosts& costs,
                       const plan::CutCosts& cut, std::size_t stages) {
  plan::FitQuestion question{
      .lower = [&](int count,
                   const auto& modes) { return lowered_table(recipe, cut.routes, count, modes); },
      .samples = static_cast<int>(largest_share_of(recipe)),
      .micro_batches = costs.sizes.micro_batches,
      .recompute = recompute_modes(recipe, stages)};
  for (const int times : {2, 4, 8})
    if (costs.sizes.micro_batches * times <= largest_share_of(recipe))
      question.other_micro_batches.push_back(costs.sizes.micro_batches * times);
  for (std::size_t s = 0; s < stages; ++s) {
    const auto device = static_cast<std::size_t>(cut.costs.device_of_stage[s]);
    question.budgets.resize(std::max(question.budgets.size(), device + 1), 0);
    question.budgets[device] = costs.budgets[s];
  }
  return plan::suggest_fit(question, cut.costs);
}

}  // namespace

RunPlan plan_on_paper(const recipe::Recipe& asked, const TrainHooks& hooks) {
  const UserParts& user_parts = hooks.user_parts;
  check_training(asked, user_parts);
  const std::vector<Device> all_devices = planned_devices(asked.devices.use);
  const std::vector<Device> devices = devices_of_pipeline(asked, all_devices);
  check_balance(asked, devices.size());
  const at::Device device = device_to_measure_on(asked, devices);
  const bool runs_on_cpu = !devices[0].torch.is_cuda();
  const LayersOnPaper layers(asked, hooks, device, runs_on_cpu ? hooks.progress : nullptr);
  recipe::Recipe recipe = layers.recipe();
  if (!recipe.pipeline.balance.empty())
    plan::check_cut({recipe.pipeline.balance.begin(), recipe.pipeline.balance.end()},
                    layers.model().size());
  if (searches_schedule(recipe)) {
    const ChosenSchedule chosen =
        choose_schedule(recipe, layers.costs(recipe_to_search(recipe), devices), {}, user_parts);
    if (hooks.progress != nullptr)
      for (const std::string& line : chosen.reasons) hooks.progress->note(line);
    recipe = chosen.recipe;
  }
  const nn::Layers& model = layers.model();
  const DataOnPaper& data = layers.data();
  const int pieces = micro_batches_of(recipe);
  const LayerCosts costs = layers.costs(recipe, devices);
  const std::vector<int> balance = cut_of(recipe, costs);
  const plan::CutCosts cut = costs_of_cut(recipe, costs, balance, user_parts);
  const CutPrediction prediction = predict_cut(recipe, costs, balance, user_parts);
  const schedule::Timeline& step = prediction.timeline;

  RunPlan plan = plan_of_recipe(recipe, user_parts);
  plan.from_samples = true;
  plan.timed_on_cpu = devices[0].torch.is_cuda() && !device.is_cuda();
  plan.devices = mesh_words(recipe.mesh) + describe_devices(all_devices);
  plan.layers = static_cast<int>(model.size());
  count_parameters(model.named_parameters(), nn::slices_of(model.graph()), &plan);
  plan.balance = balance;
  plan.micro_batches = pieces;
  plan.core_lending = core_lending(
      recipe, each_on_its_own(devices, rank_count(recipe, balance.size())) ? Lending::Possible
                                                                           : Lending::Impossible);
  bool fits = true;
  for (std::size_t s = 0; s < balance.size(); ++s) {
    const auto on = static_cast<std::size_t>(cut.costs.device_of_stage[s]);
    RunPlan::Stage row{costs.devices[s], balance[s], 0, costs.budgets[s]};
    if (row.device != "cpu") row.predicted_peak = step.device_peak_bytes.at(on);
    fits = fits && (row.budget == 0 || row.predicted_peak <= row.budget);
    plan.stages.push_back(row);
  }
  if (!fits) plan.suggestion = suggestion(recipe, costs, cut, balance.size());
  plan.predicted_seconds = schedule::makespan(step);
  plan.predicted_idle = schedule::idle_share_of_makespan(step);
  plan.predicted_communication_seconds = prediction.communication_seconds;
  plan.network = prediction.network;
  plan.tensor = tensor_traffic(step, static_cast<int>(recipe.mesh.tensor));
  plan.data_missing = data.missing;
  plan.synthetic_data = data.synthetic;
  const std::int64_t batch = recipe.train.batch;
  plan.training_examples =
      recipe.train.drop_last ? data.training - data.training % batch : data.training;
  plan.validation_examples = data.validation;
  plan.steps_per_epoch = (plan.training_examples + batch - 1) / batch;
  return plan;
}

}  // namespace trestle::train
