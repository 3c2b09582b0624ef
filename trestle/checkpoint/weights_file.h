#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"

// An open weights file: its list of tensors is checked, but no tensor has been read. Internal to
// trestle/checkpoint.
namespace trestle::checkpoint {

class WeightsFile {
 public:
  WeightsFile() = default;
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  virtual ~WeightsFile() = default;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Names of entries that are not tensors.
  const std::vector<std::string>& others() const { return others_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // A tensor of the same shape as tensor number `tensor` of the file, on any device, with any
  // strides, and of any floating type.
  struct Read {
    std::size_t tensor = 0;
    at::Tensor into;
  };
  // Reads all, and copies then: if the file cannot be read, nothing has been changed.
  void read(const std::vector<Read>& reads) const;
  // Reads all into new CPU tensors.
  NamedTensors read() const;

 protected:
  // Reads these tensors into new CPU tensors of the stored types. They may share memory.
  virtual std::vector<at::Tensor> load(const std::vector<std::size_t>& tensors) const = 0;

  std::vector<StoredTensor> tensors_;
  std::vector<std::string> others_;
  std::map<std::string, std::string> metadata_;
};

std::unique_ptr<WeightsFile> open_safetensors(const std::filesystem::path& path);
std::unique_ptr<WeightsFile> open_torch_archive(const std::filesystem::path& path);
std::unique_ptr<WeightsFile> open_gguf(const std::filesystem::path& path);
// Opens any kind, recognized by its first bytes, and the folders that weights.h names.
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& path);

}  // namespace trestle::checkpoint
