#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trestle/data/files/image.h"

// The picture of an epoch: inputs, targets and predictions.
namespace trestle::train {

struct PictureText {
  std::string title;               // "unet_quick, epoch 3 of 8, dice 0.871"
  std::vector<std::string> names;  // of the examples; may be empty
};

// Up to four rows of input, true mask and predicted mask (colour map viridis: class 0
// violet, the last class yellow), each with its name and dice. inputs float [N, 1 or 3, H,
// W] in [0, 1], targets int64 [N, H, W], output scores [N, C, H, W], all on the CPU.
// Throws UsageError on other shapes.
data::Image draw_masks(const at::Tensor& inputs, const at::Tensor& targets,
                       const at::Tensor& output, const PictureText& text);

// Up to 32 examples in rows of eight with the target and, in red where it is wrong, the prediction
// under each. targets int64 [N], output scores [N, C].
data::Image draw_classes(const at::Tensor& inputs, const at::Tensor& targets,
                         const at::Tensor& output, const PictureText& text);

// Class ids [H, W] in the colours of draw_masks().
data::Image colour_mask(const at::Tensor& mask, std::int64_t classes);

}  // namespace trestle::train
