#pragma once

#include <filesystem>
#include <memory>

#include "trestle/checkpoint/files/checkpoint_index.h"
#include "trestle/checkpoint/files/replace_folder.h"
#include "trestle/checkpoint/weights_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// The index of a folder found by whole_folder(); checks that its files exist with their sizes. For
// version 1 and for another program's folder it creates the index from the files. Throws like
// CheckpointFolder.
CheckpointIndex read_index(const std::filesystem::path& folder);

// The folder with the files: for a folder of DeepSpeed's tags, that of the newest tag.
std::filesystem::path files_folder(const std::filesystem::path& folder);

// The group "weights" of a checkpoint as a weights file.
std::unique_ptr<WeightsFile> open_checkpoint_weights(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
