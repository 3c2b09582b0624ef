#pragma once

#include <string>
#include <vector>

#include "trestle/base/traffic.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/recipe/recipe.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/costs.h"

// What [mesh] does to a stage, on paper: its units, its memory and its communication. Inside of the
// trainer. Not installed.
namespace trestle::train {

// `units` in [mesh]: "layers", "stage", a size such as "64MiB", or names of layers.
struct UnitChoiceOfRecipe {
  enum class Kind { Layers, Stage, Size, Names };
  Kind kind = Kind::Layers;
  Bytes bytes = 0;                      // Size
  std::vector<std::string> names = {};  // Names
};

// Throw UsageError that names the key.
UnitChoiceOfRecipe units_of(const recipe::Recipe::Mesh& mesh);
// Throws UsageError, with the nearest name, for a name in `units` that is of no layer. The name of
// a module's type, such as "Linear", is checked when the units are made.
void check_unit_names(const recipe::Recipe::Mesh& mesh, const std::vector<std::string>& layers);
// `reshard` in [mesh]: 0 for "yes", 1 for "no", or the number of ranks that keep parameters
// together.
int reshard_ranks(const recipe::Recipe::Mesh& mesh);
// The size of a bucket of gradients: `bucket` in [mesh], or 25 MiB or an eighth of the weights,
// whichever is less. Several buckets let communication overlap with the backward.
Bytes bucket_of(const recipe::Recipe::Mesh& mesh, Bytes trained);

// The bytes of the largest unit of level Parameters, among a stage's layers with parameters.
struct LayerBytes {
  std::string name;
  Bytes bytes = 0;
};
Bytes largest_unit(const recipe::Recipe::Mesh& mesh, const std::vector<LayerBytes>& layers);
// For each of these layers whether a unit begins with it.
std::vector<bool> unit_begins(const recipe::Recipe::Mesh& mesh,
                              const std::vector<LayerBytes>& layers);

// The parameters of a layer of a stage.
struct LayerParameters {
  std::string name;
  Bytes trained = 0;
  Bytes frozen = 0;
};
// The memory of the units of level Parameters while each layer of a stage runs: its unit and the
// next one are gathered, and its unit's gradients exist twice, as the backward made them and in the
// buffer of a reduction. Empty where the parameters of the whole stage are gathered at once, and
// for other levels.
std::vector<plan::UnitMemory> memory_of_units(const recipe::Recipe::Mesh& mesh,
                                              const std::vector<LayerParameters>& layers);

// The bytes of a stage's parameters.
struct StageParameters {
  Bytes trained = 0;
  Bytes largest_unit = 0;  // 0 if the costs of F and B have the units' memory: memory_of_units()
  Bytes frozen = 0;
  Bytes largest = 0;  // the largest trained parameter: no bucket is smaller than its parameters
};

// The bytes of the buckets of gradients that a stage keeps from step to step, in its persistent
// memory: those of DistributedDataParallel and of level OptimizerState, unless steps accumulate.
Bytes kept_buckets(const recipe::Recipe& recipe, Bytes trained);

// Changes the cost of a stage that one process trains to the cost of one rank under [mesh]:
// weights, gradients and optimizer state are sharded at its level, the reduction buffers are added,
// and the optimizer steps a shard. The optimizer's state has `states` times the size of the
// trained parameters.
void size_sharded_state(const recipe::Recipe& recipe, const StageParameters& stage, int states,
                        int micro_batches, simulate::StageCost* cost);

// Memory of one stage while its optimizer steps.
struct OptimizerStepBytes {
  Bytes gradients = 0;
  Bytes largest = 0;  // of the tensors that the optimizer steps
};
// `largest`: bytes of the stage's largest parameter.
OptimizerStepBytes bytes_during_optimizer_step(const recipe::Recipe& recipe, Bytes trained,
                                               Bytes largest);

// How a batch runs a stage's layers, for the number of its gathers.
struct StageRuns {
  int micro_batches = 1;
  schedule::Recompute recompute = schedule::Recompute::Never;
};

// The bytes that a rank sends for data parallelism in one batch. Rings reduce the gradients of its
// stage, and gather its parameters.
struct SentBytes {
  double reduce = 0;
  double first_gather = 0;  // of all units
  double next_gather = 0;   // of all units, each later time
  int gathers = 0;
  // Each forward, backward and recomputation gathers each unit for itself.
  bool gathers_in_each_run = false;

  double all() const {
    return reduce + (gathers > 0 ? first_gather + (gathers - 1) * next_gather : 0);
  }
};
// Gradients are those of the trained parameters. Level Parameters gathers the frozen ones too, in a
// backward also those that it does not reach.
SentBytes bytes_sent(const recipe::Recipe::Mesh& mesh, const StageParameters& stage,
                     const StageRuns& runs);

// The duration of one message between ranks, and what each byte that a rank sends adds to it.
struct MessageCost {
  double seconds = 0;
  double seconds_per_byte = 0;
};
// The seconds of a collective of `ranks` tensor ranks.
double seconds_of(const LayerMessage& message, int ranks, const MessageCost& cost);
// The number of messages for a stage.
struct Messages {
  int gather = 1;  // units
  int reduce = 1;  // buckets
  // Some numbers each, for which all ranks wait in each batch: agreements_of().
  int agreements = 0;
  // Whether the reduction runs beside the backward. Ranks that compute on all cores of a machine
  // have none for it.
  bool beside_backward = true;
};
// Replicas compare their shares of a batch, what they are about to do, which parameters have
// gradients, and their losses. Shards sum the norm that clips their gradients too.
int agreements_of(const recipe::Recipe& recipe);
// `units`: those with trained parameters.
int messages_of_reduction(const recipe::Recipe::Mesh& mesh, Bytes trained, int units);
// Adds the durations of a stage's communication to its cost. A reduction beside the backward is
// hidden but its last message, and but what takes longer than the backward. Nothing hides a gather.
void add_communication(const SentBytes& sent, const MessageCost& message, const Messages& messages,
                       simulate::StageCost* cost);
// The same with separate costs of the messages that reduce and that gather.
struct DataMessageCosts {
  MessageCost reduce = {};
  MessageCost gather = {};
  double agreement = 0;  // seconds
};
void add_communication(const SentBytes& sent, const DataMessageCosts& message,
                       const Messages& messages, simulate::StageCost* cost);

}  // namespace trestle::train
