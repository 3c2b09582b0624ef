#include "trestle/checkpoint/open_checkpoint.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/train_state.h"
#include "trestle/checkpoint/safetensors_file.h"
#include "trestle/checkpoint/safetensors_folder.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

// The index that a single process would have written with these files.
CheckpointIndex index_of_version_1(const fs::path& folder) {
  CheckpointIndex index;
  index.state = read_file(folder / state_name);
  for (const char* group : {"weights", "optimizer", "gradients"}) {
    const std::string file = shard_file_name(group, 0, 1);
    if (!fs::exists(folder / file) && group != std::string_view("weights")) continue;
    const SafetensorsFile part(folder / file);
    for (const StoredTensor& tensor : part.tensors())
      index.groups[group].push_back({tensor.name,
                                     dtype_name(tensor.name, tensor.type),
                                     tensor.shape,
                                     {{file, whole_box(tensor.shape)}}});
    index.files[file] = fs::file_size(folder / file);
  }
  return index;
}

void check_files(const CheckpointIndex& index, const fs::path& folder) {
  for (const auto& [name, bytes] : index.files) {
    const std::string path = (folder / name).string();
    std::error_code none;
    if (!fs::is_regular_file(path, none))
      throw FormatError("this file of the checkpoint is missing", {.file = path});
    const auto here = fs::file_size(path, none);
    if (none || here != bytes)
      throw FormatError(text("this file of the checkpoint has ", here, " bytes, but had ", bytes,
                             " when it was saved: it was cut short or belongs to another save"),
                        {.file = path});
  }
}

class CheckpointWeights : public WeightsFile {
 public:
  explicit CheckpointWeights(const fs::path& folder) : folder_(folder) {
    tensors_ = folder_.tensors("weights");
  }

  std::vector<at::Tensor> load(const std::vector<std::size_t>& wanted) const override {
    std::vector<std::string> names;
    for (const std::size_t number : wanted) names.push_back(tensors_[number].name);
    std::vector<at::Tensor> all;
    for (auto& [name, tensor] : folder_.read("weights", names)) all.push_back(std::move(tensor));
    return all;
  }

  at::Tensor load_box(const Read& read) const override {
    const StoredTensor& stored = tensors_[read.tensor];
    const at::Tensor box = at::empty(read.into.sizes(), at::dtype(stored.type));
    folder_.read("weights", {{stored.name, box, read.offset}});
    return box;
  }

 private:
  CheckpointFolder folder_;
};

}  // namespace

CheckpointIndex read_index(const fs::path& folder) {
  const fs::path file = folder / index_name;
  std::error_code none;
  const auto bytes = fs::file_size(file, none);
  if (none && fs::is_regular_file(folder / state_name)) return index_of_version_1(folder);
  if (none)
    if (const auto foreign = find_foreign_folder(folder)) return read_foreign_index(*foreign);
  if (none)
    throw FormatError(text("not a checkpoint: it has no ", index_name), {.file = folder.string()});
  if (bytes > longest_index)
    throw FormatError(text("has ", bytes, " bytes, more than the index of any checkpoint"),
                      {.file = file.string()});
  CheckpointIndex index = parse_index(read_file(file), file.string());
  check_files(index, folder);
  return index;
}

fs::path files_folder(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder / index_name, none) && !fs::exists(folder / state_name, none))
    if (const auto foreign = find_foreign_folder(folder)) return foreign->folder;
  return folder;
}

std::unique_ptr<WeightsFile> open_checkpoint_weights(const fs::path& folder) {
  const fs::path whole = whole_folder(folder);
  std::error_code none;
  if (!fs::exists(whole / index_name, none) && !fs::exists(whole / state_name, none))
    if (const auto foreign = find_foreign_folder(whole);
        foreign && foreign->kind == FolderKind::HuggingFace)
      return std::make_unique<SafetensorsFolder>(foreign->folder);
  return std::make_unique<CheckpointWeights>(folder);
}

}  // namespace trestle::checkpoint
