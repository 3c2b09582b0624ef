#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/checkpoint/files/train_state.h"
#include "trestle/device/named_tensors.h"

// The complete state for resuming a training run between two batches, in one folder
// (checkpoint_folder.h) with these groups:
//
//     weights     parameters and buffers, unsplit names
//     optimizer   "<parameter>.<state>", for example "in.conv.weight.square_avg"
//     gradients   the sums so far, within a step that adds up several batches
//
// Over ranks, each rank saves its tensors. One process or any number of ranks can read the folder.
//
//   checkpoint::TrainingCheckpoint resume{.weights = {{"w", torch::ones({8, 3})}}};
//   resume.state.step = 12;
//   checkpoint::write_training_checkpoint("last", resume);
//   checkpoint::SavedTraining saved("last");
//   at::Tensor weight = torch::empty({8, 3});
//   saved.copy_weights({{"w", weight}}, checkpoint::SurplusTensors::Refused);
namespace trestle::checkpoint {

struct TrainingCheckpoint {
  NamedTensors weights = {};
  NamedTensors optimizer = {};
  NamedTensors gradients = {};  // empty between two steps
  TrainState state = {};
};

// Replaces the folder like write_checkpoint(), and throws the same. Padded rows are left out, and
// slices are written as boxes of whole tensors. Step, epoch, samples, seed and recipe_hash must be
// the same on all ranks; the rest of the state is rank 0's.
void write_training_checkpoint(const std::filesystem::path& folder,
                               const TrainingCheckpoint& resume, const SaveRanks& ranks = {},
                               const PaddedRows& padding = {}, const RankSlices& slices = {});
// The same for ranks that own boxes of tensors.
void write_training_checkpoint(const std::filesystem::path& folder, const TensorGroups& groups,
                               const TrainState& state, const SaveRanks& ranks = {},
                               const PaddedRows& padding = {}, const RankSlices& slices = {});

// Tensors of the checkpoint that were not requested.
enum class SurplusTensors {
  Refused,  // are an error: this is another model
  Ignored   // are allowed: they belong to other ranks
};

// An open checkpoint. It also reads folders of version 1, a state.json beside safetensors.
class SavedTraining {
 public:
  // Throws FileError if there is no such folder, FormatError if its contents are invalid. `padding`
  // and `slices` as in CheckpointFolder.
  explicit SavedTraining(const std::filesystem::path& folder, const PaddedRows& padding = {},
                         const nn::ParameterSlices& slices = {});

  const TrainState& state() const { return state_; }
  const CheckpointFolder& folder() const { return folder_; }

  // Copies into parameters and buffers in place, on any devices. Throws FormatError that lists the
  // names, shapes and types that differ, and for a damaged file; nothing has been changed then.
  void copy_weights(const NamedTensors& into, SurplusTensors surplus) const;
  // The first half of it: reads and checks.
  StagedTensors stage_weights(const NamedTensors& into, SurplusTensors surplus) const;
  // Checks that the weights are those of a model with these tensors. Throws like copy_weights().
  void check_weights(const std::vector<StoredTensor>& model, SurplusTensors surplus) const;
  // The saved state of these parameters; none for a parameter that never had a gradient.
  NamedTensors optimizer(const std::vector<std::string>& parameters) const;
  NamedTensors gradients(const std::vector<std::string>& parameters) const;

 private:
  CheckpointFolder folder_;
  TrainState state_;
};

// Reads everything.
TrainingCheckpoint read_training_checkpoint(const std::filesystem::path& folder);

// Reads only the position, which is fast.
TrainState read_train_state(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
