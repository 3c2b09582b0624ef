#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "trestle/data/files/image.h"
#include "trestle/data/files/image_file.h"

// How a picture file becomes what a model takes.
namespace trestle::data {

struct PictureOptions {
  double scale = 1;           // in (0, 1]; both sides become int(scale * side), as in Python
  int width = 0, height = 0;  // every picture is made this large; 0 = its own size times `scale`
  int channels = 3;           // 1 = grey, 3 = RGB; pictures of another kind are turned into it
};

// Throws UsageError for a scale outside of (0, 1], one side without the other, both a scale and a
// size, and for channels other than 1 and 3.
void check_picture_options(const PictureOptions& options);

// What a picture of this size becomes. Throws UsageError, naming `path`, when no pixels are left.
ImageSize target_size(const Image& image, const PictureOptions& options,
                      const std::filesystem::path& path);

// float [channels, height, width] in [0, 1]: resized bicubically with antialiasing, to Pillow's bits.
at::Tensor picture_to_tensor(const Image& image, const PictureOptions& options,
                             const std::filesystem::path& path);

// The same of a file, upright however the camera was held. Throws as read_image, and as above.
at::Tensor load_picture(const std::filesystem::path& path, const PictureOptions& options = {});

// As load_picture reads it.
Image read_picture(const std::filesystem::path& path);

}  // namespace trestle::data
