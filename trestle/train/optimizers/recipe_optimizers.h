#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/optim/options/optimizer_options.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/optimizers/stage_optimizer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The optimizer of a recipe. Throws UsageError for values that no optimizer takes.
optim::OptimizerOptions optimizer_options(const recipe::Recipe& recipe);

// Makes the optimizers of a pipeline's stages as [optimizer] describes them.
class RecipeOptimizers {
 public:
  explicit RecipeOptimizers(const recipe::Recipe& recipe) : recipe_(recipe) {}

  // The model's parameters with what is frozen, called before the first make(): `no_weight_decay`
  // goes by the dimensions of a whole parameter, which its shard does not have.
  void set_parameters(const NamedTensors& whole);

  // PipelineOptions::optimizer.make. Null where all of the stage's parameters are frozen.
  std::unique_ptr<torch::optim::Optimizer> make(int stage, const NamedTensors& parameters);

  // Those that the pipeline has made.
  std::vector<StageOptimizer> of(Pipeline& pipeline) const;

 private:
  recipe::Recipe recipe_;
  NamedTensors whole_;
  std::mutex mutex_;  // of several workers that make optimizers
  std::map<int, StageOptimizer> made_;
};

}  // namespace trestle::train
