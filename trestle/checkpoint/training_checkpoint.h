#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "trestle/checkpoint/safetensors.h"

// Everything a training run needs to go on between two batches, in one folder:
//
//     last/weights.safetensors     parameters and buffers, unsplit names
//     last/optimizer.safetensors   "<parameter>.<state>", for example "in.conv.weight.square_avg"
//     last/gradients.safetensors   those so far of a step that adds up several batches, in its middle
//     last/state.json              where it stood
namespace trestle::checkpoint {

struct TrainState {
  std::int64_t step = 0;   // optimizer steps done; the number of the next one
  std::int64_t epoch = 0;  // the epoch that step belongs to, from 0
  std::int64_t batch = 0;  // batches of that epoch already done
  std::uint64_t seed = 0;
  std::int64_t best_epoch = -1;  // -1: no validation yet
  double best_metric = 0;
  std::string recipe_hash;  // of what must not change between the two halves of a run
  // Anything else that must come back exactly: running sums, learning rates.
  std::map<std::string, double> numbers;
};

struct TrainingCheckpoint {
  NamedTensors weights;
  NamedTensors optimizer;
  NamedTensors gradients = {};  // empty between two steps
  TrainState state;
};

// Replaces the folder as one. The new content is written to "<folder>.tmp" and flushed, then the
// two names are exchanged in one system call and the older content removed; on a file system that
// cannot exchange, the older folder is renamed to "<folder>.old" first. Whenever the machine stops,
// one whole folder is there, the older or the newer, and read_training_checkpoint() finds it.
// Throws FileError (disk full, no permission); the older content then stays.
void write_training_checkpoint(const std::filesystem::path& folder,
                               const TrainingCheckpoint& resume);

// Throws FileError where there is no such folder, FormatError where its content is not right.
TrainingCheckpoint read_training_checkpoint(const std::filesystem::path& folder);

// The same for where it stood alone, which is quickly read.
TrainState read_train_state(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
