#include "trestle/checkpoint/files/foreign/foreign_folder.h"

#include <algorithm>
#include <fstream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code none;
  return fs::is_regular_file(path, none);
}

bool has_deepspeed_model(const fs::path& folder) {
  return is_file(folder / deepspeed_model_file(0, 0)) ||
         is_file(folder / deepspeed_model_file(3, 0));
}

// The folder of the tag in the file `latest`; empty if there is none.
fs::path latest_folder(const fs::path& folder) {
  constexpr std::size_t longest_tag = 255;
  if (!is_file(folder / deepspeed_latest_name)) return {};
  std::ifstream in(folder / deepspeed_latest_name, std::ios::binary);
  std::string tag(longest_tag + 1, '\0');
  in.read(tag.data(), static_cast<std::streamsize>(tag.size()));
  tag.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  tag = trim(tag);
  if (!is_plain_file_name(tag)) return {};
  return folder / tag;
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  constexpr std::size_t longest = 255;
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return plain && !name.empty() && name.size() <= longest && name != "." && name != "..";
}

std::string deepspeed_model_file(int stage, int rank) {
  return stage < 3 ? "mp_rank_00_model_states.pt"
                   : text("zero_pp_rank_", rank, "_mp_rank_00_model_states.pt");
}

std::string deepspeed_optimizer_file(bool bf16, int rank) {
  return text(bf16 ? "bf16_" : "", "zero_pp_rank_", rank, "_mp_rank_00_optim_states.pt");
}

std::optional<ForeignFolder> find_foreign_folder(const fs::path& folder) {
  if (is_file(folder / dcp_metadata_name)) return ForeignFolder{FolderKind::Dcp, folder};
  // A run's folder may hold an exported file of that name.
  const bool is_run = is_file(folder / "recipe.toml");
  const bool has_weights = is_file(folder / hugging_face_index_name) ||
                           is_file(folder / hugging_face_single_name) ||
                           is_file(folder / hugging_face_pickled_name);
  if (!is_run && has_weights) return ForeignFolder{FolderKind::HuggingFace, folder};
  if (has_deepspeed_model(folder)) return ForeignFolder{FolderKind::Deepspeed, folder};
  const fs::path latest = latest_folder(folder);
  if (!latest.empty() && has_deepspeed_model(latest))
    return ForeignFolder{FolderKind::Deepspeed, latest};
  return std::nullopt;
}

CheckpointIndex read_foreign_index(const ForeignFolder& found) {
  switch (found.kind) {
    case FolderKind::Deepspeed:
      return read_deepspeed_index(found.folder);
    case FolderKind::Dcp:
      return read_dcp_index(found.folder);
    case FolderKind::HuggingFace:
    case FolderKind::Trestle:
      break;
  }
  return read_hugging_face_index(found.folder);
}

}  // namespace trestle::checkpoint
