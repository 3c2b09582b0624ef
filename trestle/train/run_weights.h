#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_checkpoint.h"

// What a run has learnt, for verbs that use it. Inside of train. Not installed.
namespace trestle::train {

struct RunWeights {
  std::filesystem::path file;  // or a checkpoint's folder
  recipe::Recipe recipe;       // of their run, the paths of its data as seen_from_here() gives them
};

// Those of a run folder, or the file of weights or the checkpoint `run` in one. Throws UsageError where there is no
// such run, or nothing of the kind was saved in it yet.
RunWeights find_run_weights(const std::filesystem::path& run, Checkpoint which);

// How far the training was when they were saved; 0 where the file does not say.
struct TrainedFor {
  std::int64_t epochs = 0, steps = 0;
};

// The run's pipeline with these weights. With other devices than the run's its cut is measured anew,
// on `sample`.
std::unique_ptr<Pipeline> make_trained_pipeline(const RunWeights& weights, const nn::Layers& model,
                                                const std::vector<Device>& devices,
                                                const at::Tensor& sample,
                                                TrainedFor* trained_for = nullptr);

}  // namespace trestle::train
