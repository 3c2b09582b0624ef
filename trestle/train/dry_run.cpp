#include "trestle/train/dry_run.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <set>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/cuda_count.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/plan/extrapolate.h"
#include "trestle/plan/fit.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/find_data.h"
#include "trestle/train/example_check.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/loss_memory.h"
#include "trestle/train/optimizers/parameter_groups.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/setup.h"
#include "trestle/train/slow_precision.h"
#include "trestle/train/task.h"

namespace trestle::train {
namespace {

// The facts about the data that a plan needs.
struct DataOnPaper {
  at::Tensor example;                         // [1, ...], as the model gets it
  data::Sample sample;                        // the same with its target, if the data are there
  std::int64_t training = 0, validation = 0;  // 0 and 0 where they are not there
  std::string missing;                        // why not
  std::string synthetic;                      // where they lie if they are synthetic
};

DataOnPaper look_at_data(const recipe::Recipe& recipe, const UserParts& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  DataOnPaper data;
  recipe::Recipe found = recipe;
  OpenedData opened;
  try {
    found.data = data_that_are_there(recipe, own);
    opened = set.open(found);
  } catch (const UsageError& error) {
    // Other errors are faults of the recipe, which training reports too.
    if (!set.usual_input || !data_are_missing(set, recipe)) throw;
    const std::vector<std::int64_t> sizes = set.usual_input(recipe);
    data.missing = split(error.what(), '\n')[0];
    const bool tokens = set.predicts == Predicts::Token;
    data.example = at::zeros({1}, tokens ? at::kLong : at::kFloat).expand(sizes).unsqueeze(0);
    if (tokens) data.sample.target = data.example[0];
    return data;
  }
  check_examples(found, opened);
  data.synthetic = synthetic_data_of(found, own).value_or("");
  data.training = std::ssize(opened.training.indices);
  data.validation = std::ssize(opened.validation.indices);
  data.sample = opened.training.dataset->get(opened.training.indices.at(0));
  data.example = data.sample.input.unsqueeze(0);
  return data;
}

// Pixels of the samples. Larger samples are more exact and take longer: seconds for the largest
// model that ships.
constexpr double small_area = 96 * 96;
constexpr double large_area = 192 * 192;
constexpr std::int64_t few_examples = 4;
constexpr std::int64_t long_row = 256;  // tokens

// The sizes of an image of about this area with the same proportions. They are multiples of 32,
// which nets with five halvings need.
std::vector<std::int64_t> sizes_of_picture(const at::Tensor& example, double area) {
  const double shrink = std::sqrt(area / static_cast<double>(example.size(2) * example.size(3)));
  const auto side = [&](std::int64_t dimension) {
    const double wanted = static_cast<double>(example.size(dimension)) * shrink / 32;
    return 32 * std::max<std::int64_t>(1, std::llround(wanted));
  };
  return {1, example.size(1), side(2), side(3)};
}

// Samples of volumes have fewer columns, and all slices and rows: libtorch chooses the kernel of a
// convolution, and with it the memory, by the number of examples, channels, slices and rows.
constexpr std::int64_t few_columns = 16, more_columns = 32;
constexpr double large_volume = 64 * 64 * 64;

// Several examples have another kernel than one.
std::vector<std::int64_t> sizes_of_volume(const at::Tensor& example, std::int64_t count,
                                          std::int64_t columns) {
  return {std::min<std::int64_t>(count, 2), example.size(1), example.size(2), example.size(3),
          columns};
}

// Pixels or voxels of all examples.
double places_of(at::IntArrayRef sizes) {
  return static_cast<double>(sizes[0] * c10::multiply_integers(sizes.slice(2)));
}

// The precision to measure layers in, and how much slower the run's own is.
struct MeasuredPrecision {
  Precision precision = Precision::Float32;
  double times = 1;
};

MeasuredPrecision measured_precision(const recipe::Recipe& recipe,
                                     const std::optional<precision::SlowPrecision>& slow) {
  const Precision own = precision::parse_precision(recipe.train.precision);
  if (!slow || own != Precision::Float16 || slow->speed.bf16 <= 0) return {.precision = own};
  return {.precision = Precision::BFloat16, .times = slow->speed.fp16 / slow->speed.bf16};
}

class Samples {
 public:
  Samples(const recipe::Recipe& recipe, const nn::Layers& model, at::Device device,
          MeasuredPrecision precision, MessageLog* log)
      : recipe_(recipe), model_(model), device_(device), precision_(precision), log_(log) {}

  // The profile of a micro-batch of `count` examples like this one.
  plan::LayerProfile profile(const at::Tensor& example, std::int64_t count) const {
    if (is_large(example)) {
      try {
        return by_places(example, count);
      } catch (const c10::Error& error) {
        if (!is_misfit(error)) throw;  // a net for pictures of one size
      }
    }
    if (is_long_row(example)) return by_tokens(example, count);
    if (count <= few_examples) return measure(example, count);
    return plan::extrapolate(measure(example, few_examples / 2), few_examples / 2,
                             measure(example, few_examples), few_examples,
                             static_cast<double>(count));
  }

 private:
  plan::LayerProfile measure(const at::Tensor& example, std::int64_t count) const {
    std::vector<std::int64_t> sizes = example.sizes().vec();
    sizes[0] = count;
    const at::Tensor values =
        example.is_floating_point() ? at::rand(sizes) : example.expand(sizes).clone();
    const at::Tensor inputs = pipeline::in_memory_format({values}, memory_format_of(recipe_))[0];
    const precision::Autocast autocast(precision_.precision);
    plan::LayerProfile profile =
        profile_layers(graph_of_training(recipe_, model_), {inputs}, device_, log_);
    for (plan::LayerCost& cost : profile.layers) {
      if (cost.parameters == 0) continue;
      cost.forward *= precision_.times;
      cost.backward *= precision_.times;
    }
    return profile;
  }

  static bool is_large(const at::Tensor& example) {
    if (example.dim() == 4) return places_of(example.sizes()) > 2 * large_area;
    return example.dim() == 5 && example.size(4) >= 2 * more_columns &&
           places_of(example.sizes()) > large_volume;
  }

  // Extrapolates from two small samples by their pixels or voxels.
  plan::LayerProfile by_places(const at::Tensor& example, std::int64_t count) const {
    const auto measured = [&](const std::vector<std::int64_t>& sizes) {
      return std::pair(measure(at::zeros({1}).expand(sizes), sizes[0]), places_of(sizes));
    };
    const bool volume = example.dim() == 5;
    const auto [small, small_size] = measured(volume ? sizes_of_volume(example, count, few_columns)
                                                     : sizes_of_picture(example, small_area));
    const auto [large, large_size] = measured(volume ? sizes_of_volume(example, count, more_columns)
                                                     : sizes_of_picture(example, large_area));
    return plan::extrapolate(small, small_size, large, large_size,
                             static_cast<double>(count) * places_of(example.sizes()));
  }

  // A row of tokens for a core of attention whose memory grows with the tokens, not their square.
  bool is_long_row(const at::Tensor& example) const {
    return is_transformer(recipe_) && example.dim() == 2 && example.size(1) >= long_row &&
           recipe_.transformer.attention == "fused";
  }

  // Extrapolates from two parts of a row. The attention's share of the time grows faster.
  plan::LayerProfile by_tokens(const at::Tensor& example, std::int64_t count) const {
    const std::int64_t small = example.size(1) / 8, large = example.size(1) / 4;
    return plan::extrapolate(measure(example.narrow(1, 0, small), 1), static_cast<double>(small),
                             measure(example.narrow(1, 0, large), 1), static_cast<double>(large),
                             static_cast<double>(count * example.size(1)));
  }

  const recipe::Recipe& recipe_;
  const nn::Layers& model_;
  const at::Device device_;
  const MeasuredPrecision precision_;
  MessageLog* const log_;
};

void make_layers(const nn::Layers& model, at::MemoryFormat format) {
  for (const auto& layer : model.graph().layers) {
    layer.to(at::kCPU);
    layer.to(format);
  }
}

// Bytes are counted only on devices with meters.
at::Device device_to_measure_on(const recipe::Recipe& recipe, const std::vector<Device>& planned) {
  const int threads = static_cast<int>(recipe.devices.threads);
  if (planned[0].torch.is_cuda() && cuda_count() > 0) return at::Device(at::kCUDA, 0);
  install_virtual_devices({.count = 1, .threads_per_device = std::max(threads, 1)});
  if (threads > 0) set_worker_threads(threads);
  return virtual_devices(1)[0].torch;
}

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

bool each_on_its_own(const std::vector<Device>& devices, std::size_t stages) {
  std::set<int> numbers;
  for (const Device& device : devices)
    if (device.torch.is_privateuseone()) numbers.insert(device.torch.index());
  return numbers.size() == stages;
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
  recipe::Recipe recipe = asked;
  check_training(recipe, user_parts);
  check_initial_weights(recipe);
  const std::vector<Device> all_devices = planned_devices(recipe.devices.use);
  const std::vector<Device> devices = devices_of_pipeline(recipe, all_devices);
  check_balance(recipe, devices.size());
  const models::TensorSplit split = split_on_paper(recipe.mesh);
  const nn::Layers model = make_model(recipe, hooks.models, split);
  const DataOnPaper data = look_at_data(recipe, user_parts);
  check_channels(recipe, data.example);
  check_shares(recipe, data.training);
  if (data.training > 0) recipe.train.batch = std::min(recipe.train.batch, data.training);
  const at::Device device = device_to_measure_on(recipe, devices);
  make_layers(model, memory_format_of(recipe));
  check_parameter_names(recipe, model.named_parameters());
  freeze_named(recipe, model.named_parameters());
  const nn::Loss loss = loss_of_split(recipe, user_parts, split);
  check_example(recipe, model, loss, data.sample);
  std::optional<precision::SlowPrecision> slow;
  if (!device.is_cuda()) {
    const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
    const bool reports = hooks.progress != nullptr && !devices[0].torch.is_cuda();  // runs on a CPU
    slow = report_slow_precision(recipe, model, hooks, reports ? *hooks.progress : *silent);
  }

  const int pieces = micro_batches_of(recipe);
  LayerCosts costs = costs_without_layers(recipe, devices, pieces);
  count_optimizer_step(recipe, model, &costs);
  costs.profile = with_inputs_named(recipe, data.example, [&] {
    return Samples(recipe, model, device, measured_precision(recipe, slow), split.ranks.log().get())
        .profile(data.example, largest_micro_batch_of(recipe));
  });
  add_loss_messages(recipe, split, &costs.profile);
  costs.profile.loss_memory =
      loss_memory(loss, costs.profile, largest_micro_batch_of(recipe), data.sample.target, device);
  set_loss_memory(loss, &costs);
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
      recipe, each_on_its_own(devices, balance.size()) ? Lending::Possible : Lending::Impossible);
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
