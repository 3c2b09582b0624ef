#pragma once

#include <c10/util/Exception.h>
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

[[noreturn]] void throw_misfit(const recipe::Recipe& recipe, const at::Tensor& inputs,
                               const c10::Error& error);

// Whether libtorch says that tensors do not go together, and not that a device or this machine is
// full or broken.
bool is_misfit(const c10::Error& error);

// Runs what gives `inputs` to the model. An error that is_misfit() becomes a UsageError with what
// came to the model and what may be changed.
template <class Action>
auto with_inputs_named(const recipe::Recipe& recipe, const at::Tensor& inputs, Action action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    if (!is_misfit(error)) throw;
    throw_misfit(recipe, inputs, error);
  }
}

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
