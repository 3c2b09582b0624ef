#include "trestle/data/segmentation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"

namespace trestle::data {

std::string describe_ignored(std::int64_t ignored, std::int64_t all) {
  return text(ignored, " of ", all, all == 1 ? " target is" : " targets are",
              " ignored: ", ignored == 1 ? "it is " : "they are ", ignored_target,
              ", which no loss and no metric counts");
}

namespace {

namespace fs = std::filesystem;

void throw_problems(const std::vector<std::string>& problems) {
  constexpr std::size_t shown = 5;
  std::string message = problems[0];
  if (problems.size() > 1) {
    message = text(problems.size(), " examples do not have one image and one mask:");
    for (std::size_t i = 0; i < std::min(problems.size(), shown); ++i)
      message += "\n  " + problems[i];
    if (problems.size() > shown) message += text("\n  and ", problems.size() - shown, " more");
  }
  throw UsageError(message, {.hint = "Run `trestle data check` to list all of them."});
}

std::vector<ImagePair> all_pairs(const fs::path& images, const fs::path& masks,
                                 const std::string& suffix) {
  PairListing listing = list_pairs(images, masks, suffix);
  if (!listing.problems.empty()) throw_problems(listing.problems);
  return std::move(listing.pairs);
}

MaskClasses classes_of(const SegmentationOptions& options) {
  if (!options.mask_values.empty()) return MaskClasses(options.mask_values, options.ignored);
  std::vector<MaskValue> ids;
  for (int c = 0; c < options.classes; ++c) ids.push_back(parse_mask_value(text(std::min(c, 255))));
  return MaskClasses(std::move(ids), options.ignored);
}

ImageSize size_of(const Image& image) { return {image.width, image.height}; }

void check_same_size(const ImageSize& image, const ImageSize& mask, const ImagePair& files) {
  if (image.width == mask.width && image.height == mask.height) return;
  throw FormatError(
      text("the mask has ", mask.width, " x ", mask.height, " pixels, but its image ",
           files.image.filename().string(), " has ", image.width, " x ", image.height),
      {.file = files.mask.string()});
}

at::Tensor mask_to_target(const Image& ids, const SegmentationOptions& options) {
  at::Tensor target = at::empty({ids.height, ids.width}, at::kLong);
  const int ignored = options.ignored.empty() ? -1 : MaskClasses::ignored_id;
  std::ranges::transform(ids.pixels, target.data_ptr<std::int64_t>(),
                         [&](std::uint8_t id) { return id == ignored ? ignored_target : id; });
  return target;
}

}  // namespace

SegmentationDataset::SegmentationDataset(const fs::path& images_folder,
                                         const fs::path& masks_folder,
                                         const SegmentationOptions& options)
    : SegmentationDataset(all_pairs(images_folder, masks_folder, options.mask_suffix), options) {}

SegmentationDataset::SegmentationDataset(std::vector<ImagePair> pairs,
                                         const SegmentationOptions& options)
    : pairs_(std::move(pairs)), options_(options), classes_(classes_of(options)) {
  check_picture_options(options.picture);
}

const ImagePair& SegmentationDataset::pair(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw UsageError(text("example ", index, " of ", size(), " images with masks"));
  }
  return pairs_[static_cast<std::size_t>(index)];
}

Sample SegmentationDataset::get(std::int64_t index) const { return get_part(index, Part::Both); }

Sample SegmentationDataset::get_part(std::int64_t index, Part part) const {
  const ImagePair& files = pair(index);
  Sample sample{.name = files.id};
  if (part == Part::Input) {
    const Image image = read_picture(files.image);
    check_same_size(size_of(image), read_image_size(files.mask, Orientation::Upright), files);
    sample.input = picture_to_tensor(image, options_.picture, files.image);
    return sample;
  }
  std::optional<Image> image;
  if (part == Part::Both) image = read_picture(files.image);
  const Image mask = read_mask(files.mask);
  check_same_size(image ? size_of(*image) : read_image_size(files.image, Orientation::Upright),
                  size_of(mask), files);
  const ImageSize size = target_size(mask, options_.picture, files.mask);
  const Image small = resize_nearest(mask, size.width, size.height);
  if (image) sample.input = picture_to_tensor(*image, options_.picture, files.image);
  sample.target = mask_to_target(classes_.ids(small, files.mask), options_);
  return sample;
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
