#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "trestle/data/files/image.h"
#include "trestle/data/files/image_file.h"

// Converts a picture file to a model's input.
namespace trestle::data {

struct PictureOptions {
  double scale = 1;           // in (0, 1]; both sides become int(scale * side), as in Python
  int width = 0, height = 0;  // every picture gets this size; 0 = its own size times `scale`
  int channels = 3;           // 1 = grey, 3 = RGB; other pictures are converted
};

// Throws UsageError for a scale outside of (0, 1], one side without the other, both a scale and a
// size, and channels other than 1 and 3.
void check_picture_options(const PictureOptions& options);

// The size of this picture after resizing. Throws UsageError with `path` if no pixels remain.
ImageSize target_size(const Image& image, const PictureOptions& options,
                      const std::filesystem::path& path);

// float [channels, height, width] in [0, 1]: resized bicubically with antialiasing, with Pillow's
// bits.
at::Tensor picture_to_tensor(const Image& image, const PictureOptions& options,
                             const std::filesystem::path& path);

// The same for a file, turned upright by its Exif orientation. Throws like read_image and the
// above.
at::Tensor load_picture(const std::filesystem::path& path, const PictureOptions& options = {});

// Reads a picture like load_picture.
Image read_picture(const std::filesystem::path& path);

}  // namespace trestle::data
