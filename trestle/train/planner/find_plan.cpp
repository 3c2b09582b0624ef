#include "trestle/train/planner/find_plan.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/dataset.h"
#include "trestle/device/cuda_count.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/plan/search/best_plan.h"
#include "trestle/precision/autocast.h"
#include "trestle/schedule/lower.h"
#include "trestle/train/mesh_options.h"
#include "trestle/train/planner/host_times.h"
#include "trestle/train/planner/planned_recipe.h"
#include "trestle/train/planner/recipe_machine.h"

namespace trestle {

namespace {

constexpr const char* own_name = "own";  // of the net, its data and its loss in the recipe

// A data set of one example, as often as a batch needs it. Layers and losses may work in place, so
// each reader gets a copy.
class OneExample : public data::Dataset {
 public:
  OneExample(at::Tensor input, at::Tensor target, std::int64_t count)
      : sample_{.input = std::move(input), .target = std::move(target)}, count_(count) {}
  std::int64_t size() const override { return count_; }
  data::Sample get(std::int64_t) const override {
    return {.input = sample_.input.clone(),
            .target = sample_.target.defined() ? sample_.target.clone() : at::Tensor()};
  }

 private:
  data::Sample sample_;
  std::int64_t count_;
};

recipe::Recipe recipe_of(const FindPlanOptions& options, const std::string& device) {
  recipe::Recipe recipe;
  recipe.name = own_name;
  recipe.model.name = own_name;
  recipe.data.name = own_name;
  recipe.data.validation = 0;
  recipe.train.loss = own_name;
  recipe.train.batch = options.batch;
  recipe.devices.use = device;
  static_cast<optim::OptimizerOptions&>(recipe.optimizer) = options.optimizer;
  return recipe;
}

train::TrainHooks hooks_of(const nn::Layers& net, const at::Tensor& sample,
                           const at::Tensor& target, const nn::Loss& loss, std::int64_t batch) {
  const auto example = std::make_shared<OneExample>(
      sample[0].detach().to(at::kCPU),
      target.defined() ? target[0].detach().to(at::kCPU) : at::Tensor(), batch);
  train::TrainHooks hooks;
  hooks.models[own_name] = [net](const models::ModelOptions&) { return net; };
  hooks.user_parts.data_sets[own_name] = [example](const data::DataOptions&) {
    return data::OwnData{.training = example};
  };
  hooks.user_parts.losses[own_name] = [loss] { return loss; };
  return hooks;
}

// The bytes of the trained parameters of the largest stage.
Bytes largest_stage(const nn::Layers& net, const std::vector<int>& balance) {
  const auto layers = net.graph().layers;
  auto layer = layers.begin();
  Bytes largest = 0;
  for (std::size_t stage = 0; stage < std::max<std::size_t>(1, balance.size()); ++stage) {
    const auto end = balance.empty() ? layers.end() : layer + balance[stage];
    Bytes trained = 0;
    for (; layer != end; ++layer)
      for (const auto& [name, parameter] : layer->named_parameters())
        if (parameter.requires_grad()) trained += static_cast<Bytes>(parameter.nbytes());
    largest = std::max(largest, trained);
  }
  return largest;
}

ParallelOptions parallel_options(const nn::Layers& net, const recipe::Recipe& recipe,
                                 const plan::Strategy& strategy) {
  ParallelOptions options;
  options.level = static_cast<ShardLevel>(strategy.level);
  options.options.balance.assign(recipe.pipeline.balance.begin(), recipe.pipeline.balance.end());
  options.options.micro_batches = static_cast<int>(recipe.pipeline.micro_batches);
  options.options.schedule = recipe.pipeline.schedule;
  options.options.numerics.precision = precision::parse_precision(recipe.train.precision);
  const auto& words = recipe.pipeline.recompute;
  if (words.size() == 1) options.options.recompute = schedule::parse_recompute(words[0]);
  if (words.size() > 1)
    for (const std::string& word : words)
      options.options.plan.recompute_per_stage.push_back(schedule::parse_recompute(word));
  options.shards_on_cpu = strategy.offload;
  // The buckets that the peaks were predicted with.
  options.buckets = train::buckets_of(recipe.mesh, largest_stage(net, options.options.balance));
  return options;
}

// Groups of one rank would only cost their buffers.
std::vector<mesh::Dimension> mesh_of(const plan::Strategy& strategy) {
  std::vector<mesh::Dimension> mesh = {{"pipeline", strategy.pipeline}};
  const int replicas = strategy.data / strategy.shards();
  if (replicas > 1) mesh.push_back({"replicate", replicas});
  if (strategy.shards() > 1) mesh.push_back({"shard", strategy.shards()});
  return mesh;
}

void check_options(const FindPlanOptions& options) {
  const auto refuse = [](const char* name, auto value, const char* least) {
    throw UsageError(text("find_plan(): ", name, " is ", value, ", below ", least),
                     {.hint = text("Give ", least, " or more.")});
  };
  if (options.devices < 1) refuse("devices", options.devices, "1");
  if (options.batch < 1) refuse("batch", options.batch, "1");
  if (options.memory < 0) refuse("memory", options.memory, "0");
}

}  // namespace

FoundPlan find_plan(const nn::Layers& net, const at::Tensor& sample, const at::Tensor& target,
                    const nn::Loss& loss, const FindPlanOptions& options) {
  check_options(options);
  // Two calls would measure each other's tensors.
  static std::mutex one_call;
  const std::lock_guard lock(one_call);
  const c10::InferenceMode normal(false);
  const WorkerThreadsAsBefore threads;
  if (!sample.defined() || sample.dim() == 0 || sample.size(0) == 0)
    throw UsageError("find_plan() needs one or more examples in 'sample', [n, ...]");
  if (target.defined() && (target.dim() == 0 || target.size(0) == 0))
    throw UsageError("find_plan() needs the target of the first example in 'target', [n, ...]");
  const bool on_gpu = cuda_count() > 0 && !virtual_devices_installed();
  if (!on_gpu)
    install_virtual_devices({.count = std::clamp(options.devices, 1, most_virtual_devices)});
  const std::string use = on_gpu ? "cuda:0" : "virtual:1";
  const recipe::Recipe recipe = recipe_of(options, use);
  Device device = planned_devices(use).at(0);
  device.budget = options.memory;
  const train::PlannedRecipe model(recipe, hooks_of(net, sample, target, loss, options.batch),
                                   {.device = device,
                                    .count = options.devices,
                                    .times = train::measure_host_times(recipe, options.devices),
                                    .always_ranks = true});
  const plan::Machine machine = train::machine_of_device(device);
  plan::PlanRequest request{.devices = options.devices,
                            .batch = options.batch,
                            .goal = options.goal,
                            .kept = options.keep};
  request.kept.tensor = request.kept.tensor.value_or(1);
  const plan::BestPlan best = plan::find_best_plan(model, machine, request, plan::DeviceUse::All);
  const plan::Strategy& strategy = best.plan.strategy;
  return {.strategy = strategy,
          .mesh = mesh_of(strategy),
          .options = parallel_options(net, model.recipe_of(strategy), strategy),
          .seconds = best.plan.step.seconds,
          .peak = std::llround(best.plan.worst.total()),
          .report = join(plan::reasons_of(best, model, machine), "\n") + "\n"};
}

}  // namespace trestle
