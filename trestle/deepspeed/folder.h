#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/foreign/deepspeed_pickles.h"
#include "trestle/checkpoint/files/save_ranks.h"

// Writes DeepSpeed's folders. Internal to trestle.
namespace trestle::deepspeed {

// The param_groups of the optimizer's Python class, with the current values. Throws UsageError for
// an optimizer of another class than Adam, AdamW, SGD and RMSprop.
std::vector<checkpoint::OptimizerValues> optimizer_values(const torch::optim::Optimizer& optimizer);

// Converts the checkpoint `saved`, which trestle wrote, into `root`/`tag` and `root`/latest. Throws
// as checkpoint::write_deepspeed_folder(). All ranks call it.
void convert_to_folder(const std::filesystem::path& saved, const std::filesystem::path& root,
                       const std::string& tag, const checkpoint::DeepspeedPickle& about,
                       const checkpoint::SaveRanks& ranks);

}  // namespace trestle::deepspeed
