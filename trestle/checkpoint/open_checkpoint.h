#pragma once

#include <filesystem>
#include <memory>

#include "trestle/checkpoint/files/checkpoint_index.h"
#include "trestle/checkpoint/files/replace_folder.h"
#include "trestle/checkpoint/weights_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// The index of a folder that whole_folder() found, its files being there in their sizes; of version 1
// one is made from what its files say. Throws as CheckpointFolder does.
CheckpointIndex read_index(const std::filesystem::path& folder);

// The group "weights" of a checkpoint as a file of weights.
std::unique_ptr<WeightsFile> open_checkpoint_weights(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
