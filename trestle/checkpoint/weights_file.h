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

// A file of weights, open: what it holds is known and checked, and no tensor of it is read yet.
// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

class WeightsFile {
 public:
  WeightsFile() = default;
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  virtual ~WeightsFile() = default;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Names of entries that are no tensors.
  const std::vector<std::string>& others() const { return others_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Tensor number `tensor` of the file, to be read into a tensor of the same shape: of any device
  // and strides, and of another floating type too.
  struct Read {
    std::size_t tensor = 0;
    at::Tensor into;
  };
  virtual void read(std::vector<Read> reads) const = 0;
  // All of them, new, on the CPU.
  virtual NamedTensors read() const = 0;

 protected:
  std::vector<StoredTensor> tensors_;
  std::vector<std::string> others_;
  std::map<std::string, std::string> metadata_;
};

std::unique_ptr<WeightsFile> open_safetensors(const std::filesystem::path& path);
std::unique_ptr<WeightsFile> open_torch_archive(const std::filesystem::path& path);
// Whichever of the two the file's first bytes say it is.
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& path);

}  // namespace trestle::checkpoint
