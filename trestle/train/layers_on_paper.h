#pragma once

#include <optional>
#include <vector>

#include "trestle/nn/loss.h"
#include "trestle/precision/layer_speed.h"
#include "trestle/train/data_on_paper.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/measured_samples.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The layers of a recipe's model as one rank of `tensor` in [mesh] has them, measured on small
// samples for the costs of any micro-batch.
//
//   const LayersOnPaper layers(recipe, hooks, device_to_measure_on(recipe, devices), nullptr);
//   const LayerCosts costs = layers.costs(layers.recipe(), devices);
class LayersOnPaper {
 public:
  // `device` is that of the measurement: device_to_measure_on(). Checks the recipe, its weights,
  // the model and one sample of the data. A precision that is slow on this CPU is reported to
  // `reports`, if it is not null. `like`, which must outlive it or be null, has the same recipe
  // with other recomputation: layers that they have in common are not measured again.
  // `cpu_threads`: of MeasuredSamples. Throws UsageError for what train() would refuse.
  LayersOnPaper(const recipe::Recipe& recipe, const TrainHooks& hooks, at::Device device,
                Progress* reports, const LayersOnPaper* like = nullptr, int cpu_threads = 1);
  LayersOnPaper(const LayersOnPaper&) = delete;
  LayersOnPaper& operator=(const LayersOnPaper&) = delete;

  // The recipe with a batch of no more examples than there are.
  const recipe::Recipe& recipe() const { return recipe_; }
  const DataOnPaper& data() const { return data_; }
  const nn::Layers& model() const { return model_; }

  // The costs of the layers with the micro-batches of `recipe`, which differs from recipe() in
  // these and in `schedule`, `recompute`, `balance` and [mesh] but `tensor`. `devices` has one for
  // each stage.
  LayerCosts costs(const recipe::Recipe& recipe, const std::vector<Device>& devices) const;

 private:
  recipe::Recipe recipe_;
  models::TensorSplit split_;
  nn::Layers model_;
  DataOnPaper data_;
  at::Device device_;
  nn::Loss loss_;
  std::optional<precision::SlowPrecision> slow_;
  std::optional<MeasuredSamples> samples_;
};

// A device that stands for the planned ones. Bytes are counted only on devices with meters.
at::Device device_to_measure_on(const recipe::Recipe& recipe, const std::vector<Device>& planned);

}  // namespace trestle::train
