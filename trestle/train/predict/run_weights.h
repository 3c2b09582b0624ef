#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// The weights of a run, for commands that use them. Not installed.
namespace trestle::train {

struct RunWeights {
  std::filesystem::path file;  // or a checkpoint's folder
  recipe::Recipe recipe;       // of the run, with paths as by seen_from_here()
};

// Finds the weights of a run folder, or the file of weights or the checkpoint `run` in one. Throws
// UsageError where there is no such run, or where nothing of the kind was saved yet.
RunWeights find_run_weights(const std::filesystem::path& run, Checkpoint which);

// The position of the training when the weights were saved; 0 where the file does not store it.
struct TrainedFor {
  std::int64_t epochs = 0, steps = 0;
};

// The run's pipeline with these weights. On other devices than the run's, its balance is measured
// again with `sample`.
std::unique_ptr<Pipeline> make_trained_pipeline(const RunWeights& weights, const nn::Layers& model,
                                                const std::vector<Device>& devices,
                                                const at::Tensor& sample,
                                                TrainedFor* trained_for = nullptr);

}  // namespace trestle::train
