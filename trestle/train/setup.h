#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_plan.h"
#include "trestle/train/task.h"

// From a recipe to the objects that train it.
namespace trestle::train {

// The devices of [devices], installed and with their threads set.
std::vector<Device> open_devices(const recipe::Recipe& recipe);

// The model of [model]: one of `own`, or one of models::make_model's.
nn::Layers make_model(const recipe::Recipe& recipe, const models::OwnModels& own);

// The pipeline of [pipeline]; `sample` is needed where the balance is to be measured.
std::unique_ptr<Pipeline> make_pipeline(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const std::vector<Device>& devices,
                                        const nn::Values& sample);

// One stage's optimizer, stepped for that stage alone, and its parameters' unsplit names.
struct StageOptimizer {
  int stage = 0;
  std::vector<std::string> names;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};
std::vector<StageOptimizer> make_optimizers(const recipe::Recipe& recipe, const Pipeline& pipeline);

// Bytes that the optimizer will remember for one byte of parameters: adam 2, plain sgd 0, ...
int optimizer_state_factor(const recipe::Recipe::Optimizer& optimizer);

// What the simulator expects of a step, measured on one batch without training on it. Nothing where
// even that does not fit the devices.
struct Prediction {
  simulate::Costs costs;
  schedule::Timeline timeline;
};
std::optional<Prediction> predict_step(const recipe::Recipe& recipe, Pipeline& pipeline,
                                       const Task& task, const data::Batch& batch);

RunPlan make_plan(const recipe::Recipe& recipe, const Pipeline& pipeline, const nn::Layers& model,
                  const std::vector<Device>& devices, const Task& task,
                  const std::optional<Prediction>& prediction);

}  // namespace trestle::train
