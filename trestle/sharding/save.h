#pragma once

#include <filesystem>

#include "trestle/checkpoint/save.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/sharding/sharded.h"

// Saves a sharded model, its optimizer and its place in the training in one folder, and goes on from one.
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
// The folder holds whole tensors under the model's names, in boxes that the ranks wrote (checkpoint_folder.h): any number of
// ranks on any mesh at any level loads it, a model in one process (trestle/checkpoint/save.h) and a pipeline too, and what
// those have saved loads here. On as many ranks at the same level the training goes on to the same bits as if it had never
// stopped, with options.seed as it was. state.samples is the place in the epoch's data, in samples of all ranks together.
//
// All ranks call these, with one folder that all of them see.
namespace trestle {

// Each rank writes its parts; of ranks that have the same, one, in turns. Buffers are rank 0's. The folder is replaced as one:
// whenever a process is killed or a disk is full, one whole checkpoint is there. Throws on all ranks what one met, as
// checkpoint::write_checkpoint(); UsageError for an optimizer that does not hold sharded.parameters(), or whose state has no
// names (optim/state.h); StateError where gradients of no_sync() wait to be reduced.
void save(const std::filesystem::path& folder, const Sharded& sharded,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
          const SaveOptions& options = {});
// Without an optimizer's state.
void save(const std::filesystem::path& folder, const Sharded& sharded,
          const checkpoint::TrainState& state = {}, const SaveOptions& options = {});

struct ShardLoadOptions {
  // Left: the checkpoint may have weights that are not this model's.
  checkpoint::SurplusTensors others = checkpoint::SurplusTensors::Refused;
};

// Each rank reads its parts. Returns the place in the training; random numbers go on from there. The optimizer forgets what it
// had; one that the checkpoint has no state of begins anew. Gradients that are there are let go. Throws on all ranks what one
// met: FileError where there is no checkpoint, FormatError for one that is damaged or of another model or optimizer, before
// anything is changed where names, shapes or types differ.
checkpoint::TrainState load(const std::filesystem::path& folder, Sharded& sharded,
                            torch::optim::Optimizer& optimizer,
                            const ShardLoadOptions& options = {});
// The weights and the place alone.
checkpoint::TrainState load(const std::filesystem::path& folder, Sharded& sharded,
                            const ShardLoadOptions& options = {});

namespace sharding {

// What this rank writes into a checkpoint; views of its tensors. For those who save several sharded models in one.
checkpoint::TensorGroups groups_to_save(const Sharded& sharded,
                                        const torch::optim::Optimizer* optimizer,
                                        const SaveOptions& options);

// The other way: this rank's parts, of one of several sharded models in one checkpoint. Throws on this rank what it meets.
void load_saved(const checkpoint::SavedTraining& saved, Sharded& sharded,
                torch::optim::Optimizer* optimizer, checkpoint::SurplusTensors others);

}  // namespace sharding

}  // namespace trestle
