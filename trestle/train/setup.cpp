#include "trestle/train/setup.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/optim/factory.h"
#include "trestle/train/environment.h"

namespace trestle::train {

namespace {

Bytes parameter_bytes(const Pipeline& pipeline, int stage) {
  Bytes bytes = 0;
  for (const at::Tensor& parameter : pipeline.stage_parameters(stage))
    bytes += static_cast<Bytes>(parameter.nbytes());
  return bytes;
}

// An optimizer step comes when all activations are gone. It works on one parameter at a time, with
// up to three tensors of its size beside it (Adam with weight decay).
void add_optimizer_peaks(const Pipeline& pipeline, const simulate::Costs& costs,
                         schedule::Timeline* timeline) {
  std::vector<Bytes> held(timeline->device_peak_bytes.size(), 0);
  std::vector<Bytes> largest(held.size(), 0);
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const auto device = static_cast<std::size_t>(timeline->device_of_stage.at(stage));
    held[device] += costs.stages[stage].persistent + costs.stages[stage].gradients;
    for (const at::Tensor& parameter : pipeline.stage_parameters(static_cast<int>(stage)))
      largest[device] = std::max(largest[device], static_cast<Bytes>(parameter.nbytes()));
  }
  for (std::size_t device = 0; device < held.size(); ++device) {
    Bytes& peak = timeline->device_peak_bytes[device];
    peak = std::max(peak, held[device] + 3 * largest[device]);
  }
}

// Nobody counts the bytes of the plain CPU: what is left of a prediction there, weights alone, would
// be drawn as if it were all.
void forget_bytes_of_cpu(const Pipeline& pipeline, schedule::Timeline* timeline) {
  std::vector<bool> counted(static_cast<std::size_t>(timeline->rank_count), true);
  for (int stage = 0; stage < pipeline.stage_count(); ++stage)
    if (pipeline.device(stage).torch.is_cpu())
      counted[static_cast<std::size_t>(
          timeline->rank_of_stage.at(static_cast<std::size_t>(stage)))] = false;
  std::erase_if(timeline->memory, [&](const schedule::MemorySample& sample) {
    return !counted.at(static_cast<std::size_t>(sample.rank));
  });
  for (std::size_t rank = 0; rank < timeline->peak_bytes.size(); ++rank)
    if (!counted.at(rank)) timeline->peak_bytes[rank] = 0;
}

}  // namespace

std::vector<Device> open_devices(const recipe::Recipe& recipe) {
  const int threads = static_cast<int>(recipe.devices.threads);
  // The devices' backward threads take their number when they start, at the installation.
  if (threads > 0 && recipe.devices.use.find("virtual") != std::string::npos) {
    install_virtual_devices({.count = 1, .threads_per_device = threads});
  }
  std::vector<Device> devices = parse_devices(recipe.devices.use);
  if (threads > 0) set_worker_threads(threads);
  return devices;
}

nn::Layers make_model(const recipe::Recipe& recipe, const models::OwnModels& own) {
  models::ModelOptions options;
  options.name = recipe.model.name;
  options.in_channels = recipe.model.channels;
  options.classes = recipe.model.classes;
  options.width = recipe.model.width;
  options.bilinear = recipe.model.bilinear;
  options.seed = static_cast<std::uint64_t>(recipe.train.seed);
  if (const auto found = own.find(recipe.model.name); found != own.end())
    return found->second(options);
  return models::make_model(options);
}

std::unique_ptr<Pipeline> make_pipeline(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const std::vector<Device>& devices,
                                        const nn::Values& sample) {
  PipelineOptions options;
  options.devices = devices;
  options.balance.assign(recipe.pipeline.balance.begin(), recipe.pipeline.balance.end());
  options.micro_batches = static_cast<int>(recipe.pipeline.micro_batches);
  options.schedule = recipe.pipeline.schedule;
  options.backward_order = schedule::parse_backward_order(recipe.pipeline.backward_order);
  options.batch_norm = nn::parse_batch_norm_statistics(recipe.pipeline.batch_norm);
  options.recompute = schedule::parse_recompute(recipe.pipeline.recompute.at(0));
  if (recipe.pipeline.recompute.size() > 1)
    for (const std::string& word : recipe.pipeline.recompute)
      options.recompute_per_stage.push_back(schedule::parse_recompute(word));
  options.seed = static_cast<std::uint64_t>(recipe.train.seed);
  options.threads = static_cast<int>(recipe.devices.threads);
  options.deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(recipe.pipeline.deadline * 1000));
  if (options.balance.empty()) options.sample = sample;
  return std::make_unique<Pipeline>(model, std::move(options));
}

bool is_misfit(const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  const auto says = [&](std::string_view part) {
    return words.find(part) != std::string_view::npos;
  };
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr &&
         dynamic_cast<const c10::AcceleratorError*>(&error) == nullptr &&
         !says("can't allocate memory") && !says("in loss '");
}

void throw_misfit(const recipe::Recipe& recipe, const at::Tensor& inputs, const c10::Error& error) {
  const auto sizes = inputs.sizes().slice(1);
  const bool pictures = sizes.size() == 3;
  std::string hint = "Check the layers of the model.";
  if (pictures)
    hint = text(
        "Check 'scale' in [data], which may make them too small, and 'channels' in [model]: "
        "they have ",
        sizes[0], ".");
  throw UsageError(
      text("the model '", recipe.model.name, "' cannot take these inputs of ", join(sizes, " x "),
           pictures ? " (channels, height, width)" : "", ":\n  ", error.what_without_backtrace()),
      {.hint = std::move(hint)});
}

std::vector<StageOptimizer> make_optimizers(const recipe::Recipe& recipe,
                                            const Pipeline& pipeline) {
  optim::OptimizerOptions options;
  options.name = recipe.optimizer.name;
  options.learning_rate = recipe.optimizer.learning_rate;
  options.weight_decay = recipe.optimizer.weight_decay;
  options.momentum = recipe.optimizer.momentum;
  std::unordered_map<const void*, std::string> names;
  for (const auto& [name, parameter] : pipeline.named_parameters())
    names[parameter.unsafeGetTensorImpl()] = name;
  std::vector<StageOptimizer> optimizers;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const std::vector<at::Tensor> parameters = pipeline.stage_parameters(stage);
    if (parameters.empty()) continue;
    StageOptimizer made{stage, {}, optim::make_optimizer(parameters, options)};
    for (const at::Tensor& parameter : parameters)
      made.names.push_back(names.at(parameter.unsafeGetTensorImpl()));
    optimizers.push_back(std::move(made));
  }
  return optimizers;
}

int optimizer_state_factor(const recipe::Recipe::Optimizer& optimizer) {
  if (optimizer.name == "adam" || optimizer.name == "adamw") return 2;
  return (optimizer.name == "rmsprop" ? 1 : 0) + (optimizer.momentum > 0 ? 1 : 0);
}

std::optional<Prediction> predict_step(const recipe::Recipe& recipe, Pipeline& pipeline,
                                       const Task& task, const data::Batch& batch) {
  try {
    Prediction prediction;
    prediction.costs = pipeline.profile({batch.inputs}, batch.targets, task.loss);
    for (int stage = 0; stage < pipeline.stage_count(); ++stage)
      prediction.costs.stages[static_cast<std::size_t>(stage)].persistent +=
          parameter_bytes(pipeline, stage) * optimizer_state_factor(recipe.optimizer);
    pipeline.remember_costs(prediction.costs);
    prediction.timeline = pipeline.predict(prediction.costs);
    add_optimizer_peaks(pipeline, prediction.costs, &prediction.timeline);
    forget_bytes_of_cpu(pipeline, &prediction.timeline);
    return prediction;
  } catch (const c10::OutOfMemoryError&) {
    return std::nullopt;  // with recomputation the run itself may still fit
  }
}

RunPlan make_plan(const recipe::Recipe& recipe, const Pipeline& pipeline, const nn::Layers& model,
                  const std::vector<Device>& devices, const Task& task,
                  const std::optional<Prediction>& prediction) {
  RunPlan plan;
  plan.name = recipe.name;
  plan.devices = describe_devices(devices);
  plan.model = recipe.model.name;
  plan.layers = static_cast<int>(model.size());
  plan.parameters = model.parameter_count();
  plan.balance = pipeline.balance();
  plan.balance_from = recipe.pipeline.balance.empty() ? "measured" : "given";
  plan.schedule = recipe.pipeline.schedule;
  plan.micro_batches =
      static_cast<int>(std::min(recipe.pipeline.micro_batches, recipe.train.batch));
  plan.recompute = join(recipe.pipeline.recompute, ", ");
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const Device& device = pipeline.device(stage);
    RunPlan::Stage row{device_name(device.torch), plan.balance[static_cast<std::size_t>(stage)], 0,
                       device.budget};
    const bool metered = !device.torch.is_cpu();
    if (prediction && metered)
      row.predicted_peak = prediction->timeline.device_peak_bytes.at(static_cast<std::size_t>(
          prediction->timeline.device_of_stage.at(static_cast<std::size_t>(stage))));
    plan.stages.push_back(row);
  }
  const bool fits =
      std::none_of(plan.stages.begin(), plan.stages.end(), [](const RunPlan::Stage& stage) {
        return stage.budget > 0 && stage.predicted_peak > stage.budget;
      });
  if (!fits) plan.suggestion = pipeline.suggest_fit();
  if (prediction) {
    plan.predicted_seconds = schedule::makespan(prediction->timeline);
    plan.predicted_idle = schedule::idle_share_of_makespan(prediction->timeline);
  }
  plan.training_examples = task.training->examples();
  plan.validation_examples = task.validation ? task.validation->examples() : 0;
  plan.batch = recipe.train.batch;
  plan.steps_per_epoch = task.training->batches();
  plan.epochs = recipe.train.epochs;
  plan.metric = task.metric_name;
  return plan;
}

}  // namespace trestle::train
