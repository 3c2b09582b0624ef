#pragma once

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_plan.h"
#include "trestle/train/step_prediction.h"
#include "trestle/train/task.h"

// From a recipe to the objects that train it.
namespace trestle::train {

// Throws UsageError for what no data and no device are needed to see: an unknown word, a number out
// of its range, a loss that the schedule does not allow.
void check_training(const recipe::Recipe& recipe, const UserParts& own = {});

// Throws UsageError where 'channels' is given, and the data have another number.
void check_channels(const recipe::Recipe& recipe, const at::Tensor& inputs);

// Throws UsageError where a balance is given, and more devices than one but not one for each stage.
void check_balance(const recipe::Recipe& recipe, std::size_t devices, const char* what = "device");

// The devices of [devices], installed and with their threads set.
std::vector<Device> open_devices(const recipe::Recipe& recipe);

// What [model] says of it; Preserve for torch's own.
at::MemoryFormat memory_format_of(const recipe::Recipe& recipe);

// The model of [model]: one of `own`, or one of models::make_model's.
nn::Layers make_model(const recipe::Recipe& recipe, const models::OwnModels& own);

// What a pipeline is made of besides the recipe, the model and the devices.
struct PipelineParts {
  nn::Values sample = {};           // needed where the balance is measured
  comm::Group group = {};           // the ranks of the pipeline
  ReplicaOptions replicas = {};     // where several pipelines share each batch
  OptimizerFactory optimizer = {};  // empty: the pipeline does not train
};
// The pipeline of [pipeline].
std::unique_ptr<Pipeline> make_pipeline(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const std::vector<Device>& devices, PipelineParts parts);

// Throws UsageError where some of the pipelines that share a batch would have none of the examples of the last one of an
// epoch that has so many.
void check_parts(const recipe::Recipe& recipe, std::int64_t training_examples);

// How many pieces a batch of the recipe is cut into, by each of its replicas.
int micro_batches_of(const recipe::Recipe& recipe);
// Examples of a batch that the replica with the most of them takes.
std::int64_t largest_part_of(const recipe::Recipe& recipe);
// Examples of the largest of them, which is the first.
int largest_piece_of(const recipe::Recipe& recipe);

// Bytes that the optimizer will remember for one byte of parameters: adam 2, plain sgd 0, ...
int optimizer_state_factor(const recipe::Recipe::Optimizer& optimizer);

// Parameters and buffers of the stages that are here, by their unsplit names.
NamedTensors weights_of(const Pipeline& pipeline);

[[noreturn]] void throw_misfit(const recipe::Recipe& recipe, const at::Tensor& inputs,
                               const c10::Error& error);

// Whether libtorch says that tensors do not go together, and not that a device or this machine is
// full or broken.
bool is_misfit(const c10::Error& error);

// Throws UsageError where libtorch says that a target is a class which the output does not have.
void refuse_missing_class(const recipe::Recipe& recipe, const c10::Error& error);

// Runs what gives `inputs` to the model. An error that is_misfit() becomes a UsageError with what
// came to the model and what may be changed.
template <class Action>
auto with_inputs_named(const recipe::Recipe& recipe, const at::Tensor& inputs, Action action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    refuse_missing_class(recipe, error);
    if (!is_misfit(error)) throw;
    throw_misfit(recipe, inputs, error);
  }
}

// Whether libtorch says that this machine has no room, or that sizes do not fit into 64 bits.
bool is_too_large(const c10::Error& error);

// "with width = 1000000 in [model], batch = 4 in [train]"
std::string sizes_of(const recipe::Recipe& recipe);

// Runs what makes the recipe's tensors. An error that is_too_large() gets a line with the sizes that
// were asked for.
template <class Action>
auto with_sizes_named(const recipe::Recipe& recipe, Action action) {
  try {
    return action();
  } catch (c10::Error& error) {
    if (is_too_large(error)) error.add_context(sizes_of(recipe));
    throw;
  }
}

// What a plan says of lent cores: nothing where the recipe does not ask for them.
std::string core_lending(const recipe::Recipe& recipe, bool possible);

// What a plan takes from the recipe alone.
RunPlan plan_of_recipe(const recipe::Recipe& recipe, const UserParts& own = {});

// What would make it fit, where a stage's device is expected to need more than it has.
void add_suggestion(const Pipeline& pipeline, RunPlan* plan);

RunPlan make_plan(const recipe::Recipe& recipe, const Pipeline& pipeline, const nn::Layers& model,
                  const std::vector<Device>& devices, const Task& task,
                  const std::optional<Prediction>& prediction, const UserParts& own = {});

}  // namespace trestle::train
