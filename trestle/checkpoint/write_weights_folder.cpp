#include <cstdio>
#include <iomanip>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/replace_folder.h"
#include "trestle/checkpoint/weights.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

std::vector<NamedTensors> divided(const NamedTensors& tensors, Bytes largest_file) {
  std::vector<NamedTensors> files(1);
  Bytes used = 0;
  for (const auto& [name, tensor] : tensors) {
    check_writable(name, tensor);
    const auto bytes =
        static_cast<Bytes>(tensor.numel()) * static_cast<Bytes>(tensor.element_size());
    if (!files.back().empty() && bytes > largest_file - used) {
      files.emplace_back();
      used = 0;
    }
    files.back().emplace_back(name, tensor);
    used += bytes;
  }
  return files;
}

std::string file_name(std::size_t number, std::size_t files) {
  if (files == 1) return hugging_face_single_name;
  std::ostringstream name;
  name << "model-" << std::setfill('0') << std::setw(5) << number + 1 << "-of-" << std::setw(5)
       << files << ".safetensors";
  return name.str();
}

// Whether a name is one that file_name() makes for a part of several.
bool is_part(const std::string& name) {
  static const std::regex parts("model-[0-9]{5,}-of-[0-9]{5,}\\.safetensors");
  return std::regex_match(name, parts);
}

// Files of other weights that were in the folder before: a reader would take the old index, or
// the old single file, for these weights.
void remove_older(const fs::path& folder, const std::set<std::string>& written) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool weights =
        name == hugging_face_single_name || name == hugging_face_index_name || is_part(name);
    if (weights && !written.contains(name)) fs::remove(entry.path());
  }
}

}  // namespace

void write_weights_files(const fs::path& folder, const NamedTensors& tensors,
                         std::optional<Bytes> largest_file,
                         const std::map<std::string, std::string>& metadata) {
  std::map<std::string, std::string> about = metadata;
  about.emplace("format", "pt");  // transformers refuses files without it
  const std::vector<NamedTensors> files =
      divided(tensors, largest_file.value_or(std::numeric_limits<Bytes>::max()));
  std::set<std::string> written;
  nlohmann::json map = nlohmann::json::object();
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = file_name(i, files.size());
    write_tensors(folder / name, files[i], about);
    written.insert(name);
    for (const auto& [tensor, value] : files[i]) {
      if (!map.emplace(tensor, name).second)
        throw UsageError(text("two tensors to be saved are called '", tensor, "'"));
      bytes += value.numel() * static_cast<std::int64_t>(value.element_size());
    }
  }
  if (files.size() > 1) {
    write_file(
        folder / hugging_face_index_name,
        nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n");
    written.insert(hugging_face_index_name);
  }
  try {
    remove_older(folder, written);
  } catch (const fs::filesystem_error& error) {
    throw FileError(text("cannot remove older weights: ", error.code().message()),
                    {.file = error.path1().string()});
  }
}

void write_weights_folder(const fs::path& folder, const NamedTensors& tensors, Bytes largest_file,
                          const std::map<std::string, std::string>& metadata) {
  std::error_code none;
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder, none)))
    throw UsageError(text(folder.string(), ": exists already, so it is not replaced"),
                     {.hint = "Name a new folder."});
  const fs::path fresh = fresh_folder(folder);
  fs::remove_all(fresh, none);
  fs::create_directories(fresh, none);
  if (none)
    throw FileError(text("cannot create the folder: ", none.message()), {.file = fresh.string()});
  try {
    write_weights_files(fresh, tensors, largest_file, metadata);
    fs::remove(folder, none);  // an empty one
    fs::rename(fresh, folder);
  } catch (const fs::filesystem_error& error) {
    drop_fresh(folder);
    throw FileError(error.code().message(), {.file = folder.string()});
  } catch (...) {
    drop_fresh(folder);
    throw;
  }
}

}  // namespace trestle::checkpoint
