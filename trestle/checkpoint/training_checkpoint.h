#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/checkpoint/files/train_state.h"
#include "trestle/device/named_tensors.h"

// Everything a training run needs to go on between two batches, in one folder (checkpoint_folder.h)
// with these groups:
//
//     weights     parameters and buffers, unsplit names
//     optimizer   "<parameter>.<state>", for example "in.conv.weight.square_avg"
//     gradients   those so far of a step that adds up several batches, in its middle
//
// Over ranks, each saves what it has; the same folder is read by one process or any number of ranks.
//
//   checkpoint::TrainingCheckpoint resume{.weights = {{"w", torch::ones({8, 3})}}};
//   resume.state.step = 12;
//   checkpoint::write_training_checkpoint("last", resume);
//   checkpoint::SavedTraining saved("last");
//   at::Tensor weight = torch::empty({8, 3});
//   saved.copy_weights({{"w", weight}}, checkpoint::Others::Refused);
namespace trestle::checkpoint {

struct TrainingCheckpoint {
  NamedTensors weights = {};
  NamedTensors optimizer = {};
  NamedTensors gradients = {};  // empty between two steps
  TrainState state = {};
};

// Replaces the folder as write_checkpoint() does, which also says what it throws. Step, epoch,
// samples, seed and recipe_hash must be the same on all ranks; the rest of the state is that of rank
// 0.
void write_training_checkpoint(const std::filesystem::path& folder,
                               const TrainingCheckpoint& resume, const SaveRanks& ranks = {});
// The same for ranks that have parts of tensors.
void write_training_checkpoint(const std::filesystem::path& folder, const TensorGroups& groups,
                               const TrainState& state, const SaveRanks& ranks = {});

// Tensors in the checkpoint that were not asked for.
enum class Others {
  Refused,  // an error: the model is another one
  Left      // they are other ranks'
};

// A checkpoint, open. Folders of version 1, a state.json beside safetensors, are read too.
class SavedTraining {
 public:
  // Throws FileError where there is no such folder, FormatError where its content is not right.
  explicit SavedTraining(const std::filesystem::path& folder);

  const TrainState& state() const { return state_; }
  const CheckpointFolder& folder() const { return folder_; }

  // Into parameters and buffers in place, whatever their devices. Throws FormatError that lists the
  // names, shapes and types that differ, before anything is read.
  void copy_weights(const NamedTensors& into, Others others) const;
  // Whether they are those of a model with these tensors. Throws as copy_weights().
  void check_weights(const std::vector<StoredTensor>& model, Others others) const;
  // What was saved of these parameters; of one that never had a gradient that is nothing.
  NamedTensors optimizer(const std::vector<std::string>& parameters) const;
  NamedTensors gradients(const std::vector<std::string>& parameters) const;

 private:
  CheckpointFolder folder_;
  TrainState state_;
};

// All of it.
TrainingCheckpoint read_training_checkpoint(const std::filesystem::path& folder);

// Where it stood alone, which is quickly read.
TrainState read_train_state(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
