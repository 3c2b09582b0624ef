#pragma once

#include <filesystem>
#include <functional>

#include "trestle/checkpoint/save.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/sharding/sharded.h"
#include "trestle/sharding/sharded_parameters.h"

// Saves a sharded model, its optimizer and its place in the training in one folder, and resumes
// from one.
//
//   trestle::Sharded sharded(net, mesh, {.level = trestle::ShardLevel::Parameters});
//   trestle::checkpoint::TrainState state;
//   if (trestle::checkpoint::is_checkpoint("last"))
//     state = trestle::load("last", sharded, *optimizer);
//   while (state.step < 1000) {
//     train(state.step++);
//     if (state.step % 100 == 0) trestle::save("last", sharded, *optimizer, state);
//   }
//
// The folder holds whole tensors under the model's names, in boxes that the ranks wrote
// (checkpoint_folder.h). Any number of ranks on any mesh at any level loads it, and so do a model
// in one process (trestle/checkpoint/save.h) and a pipeline. Their checkpoints load here. With the
// same number of ranks, level and options.seed, the resumed training computes the same bits as an
// uninterrupted one. state.samples is the place in the epoch's data, in samples of all ranks
// together.
//
// All ranks call these functions, with one folder on a shared file system.
namespace trestle {

// Each rank writes its shards. Ranks that hold the same shards take turns in writing them. Buffers
// are rank 0's. The folder is replaced as a whole: if a process is killed or a disk is full, one
// whole checkpoint remains. An error of one rank is thrown on all, as by
// checkpoint::write_checkpoint(). Throws UsageError for an optimizer that does not hold
// sharded.parameters(), or whose state has no names (optim/state.h). Throws StateError while
// gradients of no_sync() wait to be reduced.
void save(const std::filesystem::path& folder, const Sharded& sharded,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
          const SaveOptions& options = {});
// Without an optimizer's state.
void save(const std::filesystem::path& folder, const Sharded& sharded,
          const checkpoint::TrainState& state = {}, const SaveOptions& options = {});

struct ShardLoadOptions {
  // Left: the checkpoint may hold weights that this model does not have.
  checkpoint::SurplusTensors others = checkpoint::SurplusTensors::Refused;
};

// Each rank reads its shards. Returns the place in the training, from which random numbers
// continue. The optimizer's state is replaced, or cleared where the checkpoint has none. Gradients
// are cleared. An error of one rank is thrown on all: FileError without a checkpoint, FormatError
// for a checkpoint that is damaged or of another model or optimizer. All ranks read and check
// everything before the first changes its weights: after an error they are the old ones. A rank
// needs memory for its shards once more meanwhile.
//
// A folder of DeepSpeed's (docs/deepspeed.md) or of torch.distributed.checkpoint loads too.
checkpoint::TrainState load(const std::filesystem::path& folder, Sharded& sharded,
                            torch::optim::Optimizer& optimizer,
                            const ShardLoadOptions& options = {});
// The weights and the place alone.
checkpoint::TrainState load(const std::filesystem::path& folder, Sharded& sharded,
                            const ShardLoadOptions& options = {});

namespace sharding {

// For programs that save several sharded models in one checkpoint: what this rank writes, as views
// of its tensors.
checkpoint::TensorGroups groups_to_save(const Sharded& sharded,
                                        const torch::optim::Optimizer* optimizer,
                                        const SaveOptions& options);
checkpoint::TensorGroups groups_to_save(const ShardedParameters& sharded,
                                        const torch::optim::Optimizer* optimizer,
                                        const SaveOptions& options);
// The other way: reads and checks this rank's shards. The returned function then replaces them,
// the optimizer's state (the optimizer may be null) and the gradients. Both throw only on this
// rank. The arguments must outlive the function.
std::function<void()> stage_load(const checkpoint::SavedTraining& saved, ShardedParameters& sharded,
                                 torch::optim::Optimizer* optimizer,
                                 checkpoint::SurplusTensors others);

}  // namespace sharding

}  // namespace trestle
