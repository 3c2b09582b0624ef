#pragma once

#include <filesystem>

namespace trestle::checkpoint {

// Whether the folder is a checkpoint, of the current version or of version 1, or a folder of
// weights that DeepSpeed, torch.distributed.checkpoint or Hugging Face wrote. Reads at most
// DeepSpeed's file `latest`.
bool is_checkpoint(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
