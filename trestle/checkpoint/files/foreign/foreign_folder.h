#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "trestle/checkpoint/files/checkpoint_index.h"

// Folders of weights that other programs wrote, as an index of tensors. Nothing in them is trusted,
// and only sizes, names and places are read. Torch-free. Internal to trestle/checkpoint.
//
//     DeepSpeed       latest, global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt, ...
//     DCP             .metadata, __0_0.distcp, ...   (torch.distributed.checkpoint)
//     Hugging Face    model.safetensors.index.json, model-00001-of-00002.safetensors, ...
//
// Groups have the names of training_checkpoint.h: "weights", and "optimizer" with
// "<parameter>.<state>".
namespace trestle::checkpoint {

struct ForeignFolder {
  FolderKind kind = FolderKind::HuggingFace;
  std::filesystem::path folder;  // the one with the files: that of DeepSpeed's newest tag
};

// Nothing if it is no such folder. Reads at most DeepSpeed's file `latest`.
std::optional<ForeignFolder> find_foreign_folder(const std::filesystem::path& folder);

// Throws FormatError with the file and the tensor for anything damaged, incomplete or unknown,
// FileError if the system refuses. The state is that of train_state.h.
CheckpointIndex read_foreign_index(const ForeignFolder& found);

// The parts of read_foreign_index().
CheckpointIndex read_deepspeed_index(const std::filesystem::path& folder);
CheckpointIndex read_dcp_index(const std::filesystem::path& folder);
CheckpointIndex read_hugging_face_index(const std::filesystem::path& folder);

// Names of files: a name from a file must be one, and no path.
bool is_plain_file_name(std::string_view name);
inline constexpr const char* hugging_face_index_name = "model.safetensors.index.json";
// The index of pickled shards, which is refused with the way to convert them.
inline constexpr const char* hugging_face_pickled_name = "pytorch_model.bin.index.json";
inline constexpr const char* hugging_face_single_name = "model.safetensors";
inline constexpr const char* dcp_metadata_name = ".metadata";
inline constexpr const char* deepspeed_latest_name = "latest";

// "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt".
std::string deepspeed_model_file(int stage, int rank);
std::string deepspeed_optimizer_file(bool bf16, int rank);

}  // namespace trestle::checkpoint
