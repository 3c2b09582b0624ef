#include "trestle/checkpoint/safetensors_folder.h"

#include <string>
#include <unordered_map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/pickle/pickle.h"

namespace trestle::checkpoint {

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  const CheckpointIndex index = read_hugging_face_index(folder);
  std::unordered_map<std::string, std::unordered_map<std::string, Place>> by_file;
  for (const auto& [name, bytes] : index.files) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder / name));
    const std::vector<StoredTensor>& tensors = files_.back()->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      by_file[name][tensors[i].name] = {files_.size() - 1, i};
  }
  for (const IndexedTensor& tensor : index.groups.at("weights")) {
    const std::string& file = tensor.boxes.front().file;
    const auto found = by_file[file].find(tensor.name);
    if (found == by_file[file].end())
      throw FormatError(text("lost '", shown(tensor.name), "' while it was opened"),
                        {.file = (folder / file).string()});
    places_.push_back(found->second);
    tensors_.push_back(files_[places_.back().file]->tensors()[places_.back().tensor]);
  }
}

void SafetensorsFolder::map() {
  for (const auto& file : files_) file->map();
}

WeightsFile::Mapped SafetensorsFolder::mapped(std::size_t tensor) const {
  return files_[places_[tensor].file]->mapped(places_[tensor].tensor);
}

std::vector<at::Tensor> SafetensorsFolder::load(const std::vector<std::size_t>& wanted) const {
  return load_by_fill(wanted);
}

at::Tensor SafetensorsFolder::load_box(const Read& read) const {
  const Place& place = places_[read.tensor];
  return files_[place.file]->read_box(place.tensor, read.offset, read.into.sizes());
}

void SafetensorsFolder::fill(const std::vector<Read>& reads) const {
  std::vector<std::vector<SafetensorsFile::Elements>> of_files(files_.size());
  for (const Read& read : reads) {
    const Place& place = places_[read.tensor];
    of_files[place.file].push_back({place.tensor, 0, read.into});
  }
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i]->read_elements(of_files[i]);
}

}  // namespace trestle::checkpoint
