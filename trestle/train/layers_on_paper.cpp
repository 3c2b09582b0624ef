#include "trestle/train/layers_on_paper.h"

#include <ATen/ops/fill.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <iostream>

#include "trestle/device/cuda_count.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/train/example_check.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/loss_memory.h"
#include "trestle/train/optimizers/parameter_groups.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/setup.h"
#include "trestle/train/slow_precision.h"
#include "trestle/train/task.h"

namespace trestle::train {

namespace {

const recipe::Recipe& checked(const recipe::Recipe& recipe, const UserParts& own) {
  check_training(recipe, own);
  check_initial_weights(recipe);
  return recipe;
}

// Gives weights that were not drawn a value that products are as fast with as with any other:
// denormal numbers are slow.
void fill(const nn::Layer& layer) {
  constexpr double any_weight = 0.01;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : layer.parameters())
    if (parameter.is_floating_point()) parameter.fill_(any_weight);
}

void make_layers(const nn::Layers& model, at::MemoryFormat format, models::InitialWeights weights) {
  for (const auto& layer : model.graph().layers) {
    layer.to(at::kCPU);
    layer.to(format);
    if (weights == models::InitialWeights::Unset) fill(layer);
  }
}

// The weights are not measured, and to draw those of a large model takes longer than its layers.
models::InitialWeights weights_on_paper(const recipe::Recipe& recipe, const TrainHooks& hooks) {
  return is_transformer(recipe) && !hooks.models.contains(recipe.model.name)
             ? models::InitialWeights::Unset
             : models::InitialWeights::Drawn;
}

}  // namespace

at::Device device_to_measure_on(const recipe::Recipe& recipe, const std::vector<Device>& planned) {
  const int threads = static_cast<int>(recipe.devices.threads);
  if (planned[0].torch.is_cuda() && cuda_count() > 0) return at::Device(at::kCUDA, 0);
  install_virtual_devices({.count = 1, .threads_per_device = std::max(threads, 1)});
  if (threads > 0) set_worker_threads(threads);
  // The last device, which a program seldom uses: what it has there would count as the layers' own.
  return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(virtual_device_count() - 1)};
}

LayersOnPaper::LayersOnPaper(const recipe::Recipe& recipe, const TrainHooks& hooks,
                             at::Device device, Progress* reports, const LayersOnPaper* like,
                             int cpu_threads)
    : recipe_(checked(recipe, hooks.user_parts)),
      split_(split_on_paper(recipe.mesh)),
      model_(make_model(recipe, hooks.models, split_, nullptr, weights_on_paper(recipe, hooks))),
      data_(like != nullptr ? like->data_ : look_at_data(recipe, hooks.user_parts)),
      device_(device),
      loss_(loss_of_split(recipe, hooks.user_parts, split_)) {
  const SplitBackwards split_backwards =
      splits_backward(recipe) ? SplitBackwards::Measure : SplitBackwards::Leave;
  check_channels(recipe_, data_.example);
  check_shares(recipe_, data_.training);
  if (data_.training > 0) recipe_.train.batch = std::min(recipe_.train.batch, data_.training);
  make_layers(model_, memory_format_of(recipe_), weights_on_paper(recipe_, hooks));
  check_parameter_names(recipe_, model_.named_parameters());
  freeze_named(recipe_, model_.named_parameters());
  if (like != nullptr) {
    slow_ = like->slow_;
    samples_.emplace(recipe_, model_, device, slow_, split_.ranks.log(), cpu_threads,
                     split_backwards, &*like->samples_);
    return;
  }
  check_example(recipe_, model_, loss_, data_.sample);
  if (!device.is_cuda()) {
    const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
    slow_ = report_slow_precision(recipe_, model_, hooks, reports != nullptr ? *reports : *silent);
  }
  samples_.emplace(recipe_, model_, device, slow_, split_.ranks.log(), cpu_threads,
                   split_backwards);
}

LayerCosts LayersOnPaper::costs(const recipe::Recipe& recipe,
                                const std::vector<Device>& devices) const {
  LayerCosts costs = costs_without_layers(recipe, devices, micro_batches_of(recipe));
  count_optimizer_step(recipe, model_, &costs);
  costs.examples = largest_micro_batch_of(recipe);
  costs.profile = with_inputs_named(
      recipe, data_.example, [&] { return samples_->profile(data_.example, costs.examples); });
  add_loss_messages(recipe, split_, &costs.profile);
  costs.profile.loss_memory = loss_memory(loss_, costs.profile, costs.examples, data_.sample.target,
                                          examples_of_loss(recipe, loss_, costs), device_);
  set_loss_memory(loss_, &costs);
  const double seconds =
      loss_seconds(loss_, costs.profile, costs.examples, data_.sample.target, device_);
  plan::LayerCost& last = costs.profile.layers.back();
  last.backward += seconds;
  if (last.split) last.split->input_grad += seconds;
  return costs;
}

}  // namespace trestle::train
