#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/parallel/stage_replicas.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/train/optimizers/stage_optimizer.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_folder/best_weights.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/run_ranks.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Writes a run's checkpoints and weights into its folder, and reads a checkpoint back. All ranks
// make the same calls; each writes and reads its own stages and shards. The arguments must outlive
// it.
class Checkpointer {
 public:
  // Whether the checkpoint is taken between two batches whose gradients add up.
  enum class Gradients { None, Saved };

  // The parts of a model in training that are saved.
  struct Model {
    std::string name;  // of the model, for the files of weights
    Pipeline& pipeline;
    parallel::StageReplicas* replicas;  // null: one pipeline
    std::vector<StageOptimizer>& optimizers;
    checkpoint::PaddedRows padding = {};  // rows that are not saved
    checkpoint::RankSlices slices = {};   // of tensor parallelism
  };

  // `keep_best`: how many epochs' weights are kept.
  Checkpointer(const RunRanks& ranks, Model model, RunFolder folder, std::int64_t keep_best);

  // Copies weights, optimizer state and gradients from a checkpoint into the model.
  void load(const checkpoint::SavedTraining& saved);
  // Replaces the folder's checkpoint. Throws FileError, with what is left in the folder.
  void save(checkpoint::TrainState& state, Gradients gradients);

  // Writes best.safetensors.
  void save_best(const EpochReport& report);
  // Keeps the epoch's weights where it is one of the best few.
  void keep_weights(const EpochReport& report);

 private:
  // Each parameter with its saved gradient.
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_gradients(
      const checkpoint::SavedTraining& saved) const;
  void write(const checkpoint::TrainState& state, Gradients gradients) const;
  void write_weights(const std::filesystem::path& file, const EpochReport& report);
  NamedTensors gradients() const;
  parallel::StageOptimizers optimizers() const;

  const RunRanks& ranks_;
  Model model_;
  RunFolder folder_;
  BestWeights bests_;
};

// Calls `write`. Adds to a FileError what the folder holds and how to resume.
void with_saved_state_named(const RunFolder& folder, const RunRanks& ranks,
                            const std::function<void()>& write);

}  // namespace trestle::train
