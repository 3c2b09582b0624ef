#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "trestle/comm/message_log.h"
#include "trestle/nn/layers.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/plan/layer_profile.h"
#include "trestle/precision/autocast.h"
#include "trestle/precision/layer_speed.h"
#include "trestle/recipe/recipe.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Profiles of a model's layers for micro-batches of any size, extrapolated from small samples
// (plan/extrapolate.h). A sample is measured once.
class MeasuredSamples {
 public:
  // `recipe` and `model` must outlive it. Layers of a `slow` fp16 are measured in bf16, which has
  // the same sizes, and the times of those with parameters are multiplied. `log` gets the messages
  // of tensor ranks. With `cpu_threads` above 1 times are measured on the CPU with that many
  // threads of an operator, and only bytes on `device`. `like`, which must outlive it or be null:
  // samples of the same transformer that recomputes something else, whose times and bytes hold for
  // its layers beside the blocks.
  MeasuredSamples(const recipe::Recipe& recipe, const nn::Layers& model, at::Device device,
                  const std::optional<precision::SlowPrecision>& slow,
                  std::shared_ptr<MessageLog> log, int cpu_threads, SplitBackwards split,
                  const MeasuredSamples* like = nullptr);

  // The profile of a micro-batch of `count` examples like this one, [1, ...].
  plan::LayerProfile profile(const at::Tensor& example, std::int64_t count) const;

 private:
  // As the layers run here; measure() is as they run in the recipe's precision.
  const plan::LayerProfile& measured(const at::Tensor& example, std::int64_t count) const;
  plan::LayerProfile by_examples(const at::Tensor& example, std::int64_t count) const;
  plan::LayerProfile measure(const at::Tensor& example, std::int64_t count) const;
  plan::LayerProfile by_places(const at::Tensor& example, std::int64_t count) const;
  plan::LayerProfile by_tokens(const at::Tensor& example, std::int64_t count) const;
  bool is_long_row(const at::Tensor& example) const;

  const recipe::Recipe& recipe_;
  const nn::Layers& model_;
  at::Device device_;
  Precision precision_ = Precision::Float32;
  double times_ = 1;  // slower than measured
  std::shared_ptr<MessageLog> log_;
  int cpu_threads_;
  SplitBackwards split_;
  const MeasuredSamples* like_;
  mutable std::map<std::vector<std::int64_t>, plan::LayerProfile> measured_;  // by the sizes
};

}  // namespace trestle::train
