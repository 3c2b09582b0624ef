#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "trestle/checkpoint/safetensors_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// The safetensors files of a folder of Hugging Face as one.
class SafetensorsFolder : public WeightsFile {
 public:
  // Throws like read_hugging_face_index().
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  void map() override;
  Mapped mapped(std::size_t tensor) const override;

 protected:
  std::vector<at::Tensor> load(const std::vector<std::size_t>& wanted) const override;
  at::Tensor load_box(const Read& read) const override;
  bool can_fill() const override { return true; }
  void fill(const std::vector<Read>& reads) const override;

 private:
  struct Place {
    std::size_t file = 0;
    std::size_t tensor = 0;  // of the file
  };
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Place> places_;  // one for each of tensors_
};

}  // namespace trestle::checkpoint
