#pragma once

#include <filesystem>

namespace trestle::checkpoint {

// Whether the folder is a checkpoint, of the current version or of version 1. Reads no file.
bool is_checkpoint(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
