#include "trestle/data/picture.h"

#include <array>

#include <ATen/ops/empty.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/channels.h"
#include "trestle/data/files/resize.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

// Converts interleaved bytes to channels first, divided by 255.
at::Tensor image_to_tensor(const Image& image) {
  static const std::array<float, 256> fraction_of_byte = [] {
    std::array<float, 256> fractions{};
    for (int i = 0; i < 256; ++i)
      fractions[static_cast<std::size_t>(i)] = static_cast<float>(i / 255.0);
    return fractions;
  }();
  at::Tensor tensor = at::empty({image.channels, image.height, image.width}, at::kFloat);
  float* to = tensor.data_ptr<float>();
  const std::size_t pixels = static_cast<std::size_t>(image.width) * image.height;
  for (int c = 0; c < image.channels; ++c) {
    const std::uint8_t* from = image.pixels.data() + c;
    for (std::size_t i = 0; i < pixels; ++i, from += image.channels)
      *to++ = fraction_of_byte[*from];
  }
  return tensor;
}

}  // namespace

void check_picture_options(const PictureOptions& options) {
  const std::int64_t pixels = static_cast<std::int64_t>(options.width) * options.height;
  if (pixels > ReadImageOptions{}.max_pixels)
    throw UsageError(text("images of ", options.width, " x ", options.height, " have ", pixels,
                          " pixels, more than the limit of ", ReadImageOptions{}.max_pixels),
                     {.hint = "Make image_width and image_height in [data] smaller."});
  if (!(options.scale > 0 && options.scale <= 1)) {
    throw UsageError(
        text("the image scale is ", options.scale, ": it must be above 0 and at most 1"));
  }
  const bool sized = options.width > 0 && options.height > 0;
  if (!sized && (options.width != 0 || options.height != 0))
    throw UsageError(
        text("the image size is ", options.width, " x ", options.height,
             " pixels: give both sides"),
        {.hint = "Set image_width and image_height in [data] together; 0 = the image's own size."});
  if (sized && options.scale != 1)
    throw UsageError(text("the image size is given twice: ", options.width, " x ", options.height,
                          " pixels and a scale of ", options.scale),
                     {.hint = "Leave out 'scale', or image_width and image_height."});
  if (options.channels != 1 && options.channels != 3)
    throw UsageError(text("image files have 1 channel (grey) or 3 (RGB), not ", options.channels),
                     {.hint = "Set 'channels' in [model] to 1 or 3."});
}

ImageSize target_size(const Image& image, const PictureOptions& options, const fs::path& path) {
  if (options.width > 0) return {options.width, options.height};
  const ImageSize size{static_cast<int>(options.scale * image.width),
                       static_cast<int>(options.scale * image.height)};
  if (size.width < 1 || size.height < 1) {
    throw UsageError(text("the image scale ", options.scale, " leaves no pixels of ", image.width,
                          " x ", image.height),
                     {.file = path.string(), .hint = "Choose a larger scale."});
  }
  return size;
}

at::Tensor picture_to_tensor(const Image& image, const PictureOptions& options,
                             const fs::path& path) {
  const ImageSize size = target_size(image, options, path);
  if (image.channels == options.channels)  // the usual case: no copy of a large picture
    return image_to_tensor(resize_bicubic(image, size.width, size.height));
  return image_to_tensor(
      resize_bicubic(with_channels(image, options.channels), size.width, size.height));
}

Image read_picture(const fs::path& path) {
  return read_image(path, {.palette = Palette::Colours, .orientation = Orientation::Upright});
}

at::Tensor load_picture(const fs::path& path, const PictureOptions& options) {
  check_picture_options(options);
  return picture_to_tensor(read_picture(path), options, path);
}

}  // namespace trestle::data
