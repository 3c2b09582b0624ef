#pragma once

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/models/transformer/initialize.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/simulate/link.h"
#include "trestle/tensor_parallel/split_plan.h"
#include "trestle/train/progress/run_plan.h"
#include "trestle/train/step_prediction.h"
#include "trestle/train/task.h"

// Makes the objects that a recipe describes.
namespace trestle::train {

// Throws UsageError for mistakes that need no data and no device: an unknown name, a number out of
// range, a loss that the schedule does not allow.
void check_training(const recipe::Recipe& recipe, const UserParts& own = {});

// 'link' in [mesh]; nothing if it is empty. Throws UsageError.
std::optional<simulate::Link> link_of(const recipe::Recipe::Mesh& mesh);

// Throws UsageError where 'channels' is set and the data have another number.
void check_channels(const recipe::Recipe& recipe, const at::Tensor& inputs);

// Throws UsageError where a balance is set and there is neither one device nor one for each rank of
// its stages, nor in one process one for each stage.
void check_balance(const recipe::Recipe& recipe, std::size_t devices, const char* what = "device");

// Installs the devices of [devices] and sets their threads.
std::vector<Device> open_devices(const recipe::Recipe& recipe);

// The memory format of [model]; Preserve for the default of torch.
at::MemoryFormat memory_format_of(const recipe::Recipe& recipe);

// Throws UsageError, with the nearest name, where [mesh] or [pipeline] names a layer that `model`
// has not.
void check_names_of_layers(const recipe::Recipe& recipe, const nn::Layers& model);

// The model of [model]: one of `own`, or one of models::make_model's. Its layers have
// the names that [mesh] and [pipeline] give: check_names_of_layers(). `tensor` splits its layers:
// those of a transformer as they are made, those of another model by a plan (split_layers.h). All
// of these ranks call it. `plan` gets what became of each layer that a plan split. Unset weights
// are those of a transformer of trestle's alone: other models draw theirs.
nn::Layers make_model(const recipe::Recipe& recipe, const models::OwnModels& own,
                      const models::TensorSplit& tensor = {},
                      tensor_parallel::SplitPlan* plan = nullptr,
                      models::InitialWeights weights = models::InitialWeights::Drawn);

// The split of [mesh] as its first rank sees it, without other ranks: for predictions.
models::TensorSplit split_on_paper(const recipe::Recipe::Mesh& mesh);

// The layers of `model` as a training runs them: those that 'checkpoint' in [pipeline] names are
// recomputed in their backwards. Shares the model's modules. Throws as check_names_of_layers().
nn::Graph graph_of_training(const recipe::Recipe& recipe, const nn::Layers& model);

// make_model(), with the parameters frozen that 'frozen' in [optimizer] names. Without `tensor` it
// is split_on_paper().
nn::Layers make_frozen_model(const recipe::Recipe& recipe, const models::OwnModels& own,
                             const std::optional<models::TensorSplit>& tensor = {});

// The parts of a pipeline besides the recipe, the model and the devices.
struct PipelineParts {
  // The cut of a recipe without a balance. Empty = the layers are measured.
  std::vector<int> balance = {};
  nn::Values sample = {};                          // needed where the balance is measured
  comm::Group group = {};                          // the ranks of the pipeline
  ReplicaOptions replicas = {};                    // where several pipelines share each batch
  TensorOptions tensor = {};                       // where several ranks split the layers
  tensor_parallel::TensorRanks tensor_ranks = {};  // the same ranks
  OptimizerFactory optimizer = {};                 // empty: the pipeline does not train
};
// The pipeline of [pipeline].
std::unique_ptr<Pipeline> make_pipeline(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const std::vector<Device>& devices, PipelineParts parts);

// Throws UsageError where a replica would have no share of the last batch of an epoch of
// `training_examples`.
void check_shares(const recipe::Recipe& recipe, std::int64_t training_examples);

// The number of micro-batches in a replica's share of a batch.
int micro_batches_of(const recipe::Recipe& recipe);
// The number of examples in the largest share of a batch.
std::int64_t largest_share_of(const recipe::Recipe& recipe);
// The number of examples in the largest micro-batch, which is the first one.
int largest_micro_batch_of(const recipe::Recipe& recipe);

// The size of the optimizer's state as a multiple of the parameters: adam 2, plain sgd 0, ...
int optimizer_state_factor(const recipe::Recipe::Optimizer& optimizer);

// Parameters and buffers of the stages of this process, by their unsplit names.
NamedTensors weights_of(const Pipeline& pipeline);

[[noreturn]] void throw_misfit(const recipe::Recipe& recipe, const at::Tensor& inputs,
                               const c10::Error& error);

// Whether libtorch reports that shapes or dtypes do not match, and not that a device or this
// machine is full or broken.
bool is_misfit(const c10::Error& error);

// Throws UsageError where libtorch reports a target class that the output does not have.
void refuse_missing_class(const recipe::Recipe& recipe, const c10::Error& error);

// Calls an action that runs the model on `inputs`. An error that is_misfit() becomes a UsageError
// with the inputs' sizes and the fields to change.
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

// Whether libtorch reports that this machine has no memory, or that sizes do not fit into 64 bits.
bool is_too_large(const c10::Error& error);

// "with width = 1000000 in [model], batch = 4 in [train]"
std::string sizes_of(const recipe::Recipe& recipe);

// Calls an action that creates the recipe's tensors. An error that is_too_large() gets a line with
// the requested sizes.
template <class Action>
auto with_sizes_named(const recipe::Recipe& recipe, Action action) {
  try {
    return action();
  } catch (c10::Error& error) {
    if (is_too_large(error)) error.add_context(sizes_of(recipe));
    throw;
  }
}

// The plan's text about lent cores; empty where the recipe does not set it.
enum class Lending { Possible, Impossible };
std::string core_lending(const recipe::Recipe& recipe, Lending lending);

// The fields of a plan that the recipe alone determines.
RunPlan plan_of_recipe(const recipe::Recipe& recipe, const UserParts& own = {});

// Adds these parameters to the plan's numbers of them. One of the slices counts as the whole
// parameter.
void count_parameters(const NamedTensors& parameters, const nn::ParameterSlices& slices,
                      RunPlan* plan);

// Adds what would make the run fit, where a stage needs more memory than its device has.
void add_suggestion(const Pipeline& pipeline, RunPlan* plan);

RunPlan make_plan(const recipe::Recipe& recipe, const Pipeline& pipeline, const nn::Layers& model,
                  const std::vector<Device>& devices, const Task& task,
                  const std::optional<Prediction>& prediction, const UserParts& own = {});

}  // namespace trestle::train
