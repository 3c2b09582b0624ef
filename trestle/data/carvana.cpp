#include "trestle/data/carvana.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/ops/empty.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

void check_scale(double scale) {
  if (!(scale > 0 && scale <= 1)) {
    throw UsageError(text("the image scale is ", scale, ": it must be above 0 and at most 1"));
  }
}

void throw_problems(const std::vector<std::string>& problems) {
  constexpr std::size_t shown = 5;
  std::string message = problems[0];
  if (problems.size() > 1) {
    message = text(problems.size(), " examples are not one image and one mask:");
    for (std::size_t i = 0; i < std::min(problems.size(), shown); ++i)
      message += "\n  " + problems[i];
    if (problems.size() > shown) message += text("\n  and ", problems.size() - shown, " more");
  }
  throw UsageError(message, {.hint = "`trestle data check` lists all of them."});
}

struct Size {
  int width;
  int height;
};

Size scaled(const Image& image, double scale, const fs::path& path) {
  const Size size{static_cast<int>(scale * image.width), static_cast<int>(scale * image.height)};
  if (size.width < 1 || size.height < 1) {
    throw UsageError(
        text("the image scale ", scale, " leaves no pixels of ", image.width, " x ", image.height),
        {.file = path.string(), .hint = "Choose a larger scale."});
  }
  return size;
}

// Interleaved bytes to channels first, divided by 255.
at::Tensor to_tensor(const Image& image) {
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

at::Tensor picture_to_input(const Image& image, double scale, const fs::path& path) {
  if (image.channels != 3) {
    throw FormatError(text("the image has ", image.channels, " channels instead of 3"),
                      {.file = path.string(), .hint = "Convert it to RGB."});
  }
  const Size size = scaled(image, scale, path);
  return to_tensor(resize_bicubic(image, size.width, size.height));
}

at::Tensor mask_to_target(const Image& mask, const CarvanaOptions& options, const fs::path& path) {
  const Size size = scaled(mask, options.scale, path);
  const Image small = resize_nearest(mask, size.width, size.height);
  const int worst = *std::ranges::max_element(small.pixels);
  if (worst >= options.classes) {
    throw FormatError(
        text("the mask has the value ", worst, ", but class ids are 0 to ", options.classes - 1),
        {.file = path.string(),
         .hint = "Masks hold class ids: as GIF or palette PNG, or as grey values 0, 1, 2, ..."});
  }
  at::Tensor target = at::empty({size.height, size.width}, at::kLong);
  std::ranges::copy(small.pixels, target.data_ptr<std::int64_t>());
  return target;
}

}  // namespace

CarvanaDataset::CarvanaDataset(const fs::path& images_folder, const fs::path& masks_folder,
                               const CarvanaOptions& options)
    : options_(options) {
  check_scale(options.scale);
  CarvanaListing listing = list_carvana(images_folder, masks_folder);
  if (!listing.problems.empty()) throw_problems(listing.problems);
  pairs_ = std::move(listing.pairs);
}

const CarvanaPair& CarvanaDataset::pair(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw UsageError(text("example ", index, " of ", size(), " in the Carvana data"));
  }
  return pairs_[static_cast<std::size_t>(index)];
}

Sample CarvanaDataset::get(std::int64_t index) const {
  const CarvanaPair& files = pair(index);
  const Image image = read_image(files.image, {.palette = Palette::Colours});
  const Image mask = read_image(files.mask);
  if (mask.channels != 1) {
    throw FormatError(text("the mask has ", mask.channels, " channels instead of 1"),
                      {.file = files.mask.string(), .hint = "Masks hold class ids, not colours."});
  }
  if (image.width != mask.width || image.height != mask.height) {
    throw FormatError(text("the mask is ", mask.width, " x ", mask.height, " pixels, its image ",
                           files.image.filename().string(), " ", image.width, " x ", image.height),
                      {.file = files.mask.string()});
  }
  return {picture_to_input(image, options_.scale, files.image),
          mask_to_target(mask, options_, files.mask), files.id};
}

at::Tensor load_picture(const fs::path& path, double scale) {
  check_scale(scale);
  return picture_to_input(read_image(path, {.palette = Palette::Colours}), scale, path);
}

Image mask_to_image(const at::Tensor& mask, int width, int height) {
  const bool known = mask.defined() && mask.dim() == 2 && mask.device().is_cpu() &&
                     mask.numel() > 0 &&
                     (mask.scalar_type() == at::kLong || mask.scalar_type() == at::kByte);
  if (!known)
    throw UsageError("a mask is a CPU tensor of int64 or uint8 class ids with two dimensions");
  const at::Tensor values = mask.to(at::kLong).contiguous();
  Image image = Image::blank(static_cast<int>(mask.size(1)), static_cast<int>(mask.size(0)), 1);
  const std::int64_t* from = values.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    if (from[i] < 0 || from[i] > 255) throw UsageError(text("a mask has the value ", from[i]));
    image.pixels[i] = static_cast<std::uint8_t>(from[i]);
  }
  return resize_nearest(image, width, height);
}

}  // namespace trestle::data
