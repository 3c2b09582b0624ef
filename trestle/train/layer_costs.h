#pragma once

#include <string>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/models/model.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/machine/calibration.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/recipe/recipe.h"
#include "trestle/schedule/timeline.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/sharding_plan.h"

// The costs of the layers of a recipe's model: the numbers of "trestle balance".
namespace trestle::train {

class Progress;
struct Task;

struct LayerCosts {
  plan::LayerProfile profile;
  std::vector<std::string> devices;  // of the recipe, one for each stage
  std::vector<Bytes> budgets;        // of the devices; 0 = no limit
  plan::SizeOptions sizes;           // of the recipe
  int examples = 0;                  // of the measured micro-batch
  std::vector<Bytes> largest = {};   // [layer] of one of its parameters
};

// A number for each stage's device: stages with the same number share its budget.
std::vector<int> device_numbers(const LayerCosts& costs);

// Fills in what the optimizer's step needs for the layers of the model.
void count_optimizer_step(const recipe::Recipe& recipe, const nn::Layers& model, LayerCosts* costs);

// Takes the memory of an additive loss, LayerProfile::loss_memory, into the sizes.
void set_loss_memory(const nn::Loss& loss, LayerCosts* costs);
// How many examples the loss computes at once: those of a micro-batch, or for a loss over the whole
// batch those of all replicas' micro-batches.
std::int64_t examples_of_loss(const recipe::Recipe& recipe, const nn::Loss& loss,
                              const LayerCosts& costs);

// Adds the messages of the loss over shards of the scores to the last layer: the largest score and
// the two sums of each token (tensor_parallel/vocabulary_cross_entropy.h).
void add_loss_messages(const recipe::Recipe& recipe, const models::TensorSplit& split,
                       plan::LayerProfile* profile);

// Everything except the profile and the examples. One device may serve all stages of a balance that
// the recipe sets.
LayerCosts costs_without_layers(const recipe::Recipe& recipe, const std::vector<Device>& devices,
                                int micro_batches);

// Measures the layers on the recipe's first device with the first examples of the data, which are
// synthesized where the recipe sets it. I and W are measured too if the schedule has them, or by
// `split`. Throws as train().
LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own, const UserParts& user_parts = {});
LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own, const UserParts& user_parts,
                          SplitBackwards split);

// The same with data that are open, on the first of these devices, one for each stage. The data and
// the model are those of a recipe that check_training() takes.
LayerCosts measure_layers(const recipe::Recipe& recipe, const Task& task,
                          const std::vector<Device>& devices, const models::OwnModels& own,
                          SplitBackwards split);

// The same from an existing profile. Opens no data and runs nothing; the devices need not exist.
// Throws UsageError for a profile of other layers than those of the recipe's model, or of another
// micro-batch, memory format, recomputation or sequence parallelism.
LayerCosts costs_of_profile(const recipe::Recipe& recipe, plan::LayerProfile profile,
                            const models::OwnModels& own, const UserParts& user_parts = {});

// The costs of the stages and routes of this cut. Transfers take no time. Throws as
// plan::costs_of_cut().
plan::CutCosts costs_of_cut(const recipe::Recipe& recipe, const LayerCosts& costs,
                            const std::vector<int>& balance, const UserParts& user_parts = {});

// The recipe's recomputation modes, one for each stage. Throws UsageError for another number of
// them.
std::vector<schedule::Recompute> recompute_modes(const recipe::Recipe& recipe, std::size_t stages);

// The recipe's schedule for this cut, lowered. Throws UsageError if it does not allow this number
// of stages.
schedule::Schedule lowered_table(const recipe::Recipe& recipe,
                                 const std::vector<schedule::Route>& routes, int micro_batches,
                                 const std::vector<schedule::Recompute>& modes);

// The predicted step on paper.
struct CutPrediction {
  schedule::Timeline timeline;       // its peaks include the optimizer's
  double communication_seconds = 0;  // that data parallelism adds, with 'link' in [mesh]
  std::string network;               // the assumed hosts and link in words; empty without 'link'
};

// Times on one host beside those of the layers. A time of 0 is left out of a prediction.
struct HostTimes {
  MessageCost replicas = {};  // collectives of the ranks that share each batch
  MessageCost tensor = {};    // collectives of the ranks that split layers
  MessageCost stages = {};  // from one stage to another, where the stages are on ranks of their own
  double optimizer_seconds_per_byte = 0;  // of trained parameters that a rank steps
  // Cores that the ranks share, over the threads of each (simulate::SharedCores); 0 = each rank has
  // its own. The times above are then those of a rank that runs alone.
  double cores = 0;
  double slowdown = 1;  // of an action while all cores are busy
  // By size and number of ranks, of one transport: they replace the three costs above for the kinds
  // of messages that they have (plan/machine/calibration.h).
  std::vector<plan::MessageTable> tables = {};

  bool has_messages() const {
    return !tables.empty() || replicas.seconds + replicas.seconds_per_byte > 0;
  }
};

// Adds the times of messages to those of a cut: those of 'link' in [mesh] between hosts, and these
// on one host.
void add_message_times(const recipe::Recipe& recipe, const LayerCosts& costs,
                       const std::vector<int>& balance, const std::vector<int>& rank_of_stage,
                       const HostTimes& times, simulate::Costs* cut);

// A step of a cut, ready to be simulated.
struct StepOnPaper {
  schedule::Schedule table;  // lowered
  simulate::Costs costs;
  std::string network;  // as in CutPrediction
};
// Throws as costs_of_cut() and lowered_table().
StepOnPaper step_on_paper(const recipe::Recipe& recipe, const LayerCosts& costs,
                          const std::vector<int>& balance, const UserParts& user_parts = {},
                          const HostTimes& times = {});

// A plain CPU has no byte counts. With 'link' in [mesh] each rank is on a host of its own, but the
// ranks of a row of HSDP's mesh (replicate and shard above 1) are on one host; messages within it
// take no time. Without 'link' all ranks are on one host, with these times. Throws as the
// functions above.
CutPrediction predict_cut(const recipe::Recipe& recipe, const LayerCosts& costs,
                          const std::vector<int>& balance, const UserParts& user_parts = {},
                          const HostTimes& times = {});

// The same for a step that step_on_paper() made of this cut.
CutPrediction predict_step_on_paper(const recipe::Recipe& recipe, const LayerCosts& costs,
                                    const std::vector<int>& balance, const StepOnPaper& paper);

}  // namespace trestle::train
