#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/data/files/image.h"
#include "trestle/train/picture.h"

// Pictures of volumes. A voxel is drawn as a square, whatever its lengths are.
namespace trestle::train {

// Up to four examples, those with the most true foreground. Each is cut three times where it has
// the most foreground: a slice, and a plane seen from the front and one from the side. A broad
// yellow line surrounds the true classes, a thin red line the predicted ones.
// inputs float [N, C, D, H, W], of which the first channel is drawn, targets int64 [N, D, H, W],
// output scores [N, K, D, H, W], all on the CPU. Throws UsageError on other shapes.
data::Image draw_volumes(const at::Tensor& inputs, const at::Tensor& targets,
                         const at::Tensor& output, const PictureText& text);

// Up to twelve evenly spaced slices of a volume float [D, H, W], in rows of six, with a red line
// around the classes of `mask`, int64 [D, H, W]. Throws UsageError on other shapes.
data::Image draw_slices(const at::Tensor& volume, const at::Tensor& mask, const std::string& title);

}  // namespace trestle::train
