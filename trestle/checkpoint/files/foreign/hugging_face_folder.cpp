// A folder of safetensors files with one index: what save_pretrained() of Hugging Face writes.
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/files/strict_json.h"
#include "trestle/checkpoint/files/train_state.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;
using WeightMap = std::map<std::string, std::string>;  // file of each tensor

SafetensorsHeader header_of(const fs::path& path) {
  const FileBytes file(path);
  std::uint64_t length = 0;
  if (file.size() >= sizeof length) file.read(0, &length, sizeof length);
  if (file.size() < sizeof length || length > file.size() - sizeof length ||
      length > longest_header)
    throw FormatError(text("not a safetensors file: ", file.size(),
                           " bytes long, but its header length is ", length),
                      {.file = path.string()});
  return parse_header(file.read(sizeof length, length), file.size() - sizeof length - length,
                      path.string());
}

// {"metadata": {"total_size": 1234}, "weight_map": {"w": "model-00001-of-00002.safetensors"}}
WeightMap read_weight_map(const fs::path& path) {
  std::error_code none;
  if (const auto bytes = fs::file_size(path, none); none || bytes > longest_index)
    throw FormatError("cannot be the index of a folder of weights: it is too long",
                      {.file = path.string()});
  const nlohmann::json in =
      parse_object(read_file(path), "the index of these weights", path.string());
  if (!in.contains("weight_map") || !in["weight_map"].is_object())
    throw FormatError("has no 'weight_map'", {.file = path.string()});
  WeightMap map;
  for (const auto& [name, file] : in["weight_map"].items()) {
    if (!file.is_string() || !is_shard_file_name(file.get<std::string>()))
      throw FormatError(text("the file of tensor '", shown(name),
                             "' is not the name of a .safetensors file beside it"),
                        {.file = path.string()});
    map[name] = file.get<std::string>();
  }
  return map;
}

}  // namespace

CheckpointIndex read_hugging_face_index(const fs::path& folder) {
  std::error_code none;
  // Python's from_pretrained() prefers the single file too.
  const bool has_single = fs::is_regular_file(folder / hugging_face_single_name, none);
  const bool has_index = !has_single && fs::is_regular_file(folder / hugging_face_index_name, none);
  if (!has_index && !has_single)
    throw FormatError("its weights are pickled shards, not safetensors",
                      {.file = (folder / hugging_face_pickled_name).string(),
                       .hint = "Convert them in Python: model.save_pretrained(FOLDER, "
                               "safe_serialization=True)."});
  WeightMap map;
  if (has_index) map = read_weight_map(folder / hugging_face_index_name);
  std::set<std::string> files;
  for (const auto& [name, file] : map) files.insert(file);
  if (!has_index) files.insert(hugging_face_single_name);

  CheckpointIndex index;
  index.kind = FolderKind::HuggingFace;
  index.state = format_state({});
  auto& weights = index.groups["weights"];
  for (const std::string& file : files) {
    const fs::path path = folder / file;
    if (!fs::is_regular_file(path, none))
      throw FormatError(text("this file is missing, and ", hugging_face_index_name, " names it"),
                        {.file = path.string()});
    index.files[file] = fs::file_size(path);
    for (const TensorEntry& entry : header_of(path).tensors) {
      const auto listed = map.find(entry.name);
      if (has_index && (listed == map.end() || listed->second != file)) continue;
      weights.push_back(
          {entry.name, entry.dtype, entry.shape, {{file, whole_box(entry.shape), {}, {}, {}}}});
      if (has_index) map.erase(listed);
    }
  }
  if (!map.empty())
    throw FormatError(text("has no tensor '", shown(map.begin()->first), "', but ",
                           hugging_face_index_name, " lists it there"),
                      {.file = (folder / map.begin()->second).string()});
  return index;
}

}  // namespace trestle::checkpoint
