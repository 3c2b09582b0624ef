#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>

#include "trestle/data/loader.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/task.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The picture of an epoch: the first examples of its validation with their targets and predictions.
class EpochPicture {
 public:
  // Copies the first examples of a validation batch with the model's output for them.
  void keep(const at::Tensor& inputs, const data::Batch& batch, const at::Tensor& output);

  // Draws what keep() copied into `file` and frees it. False where nothing was kept, or where the
  // examples are not images. Throws FileError.
  bool draw(const std::filesystem::path& file, const Task& task, const std::string& run,
            const EpochReport& report);

 private:
  std::optional<data::Batch> shown_;
  at::Tensor output_;
};

}  // namespace trestle::train
