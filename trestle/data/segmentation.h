#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"
#include "trestle/data/files/image.h"
#include "trestle/data/files/image_pairs.h"
#include "trestle/data/files/mask_values.h"
#include "trestle/data/picture.h"

namespace trestle::data {

// The target of a pixel without a class: torch's number for it, and nn::ignored_target.
inline constexpr std::int64_t ignored_target = -100;

// "3 of 64 targets are ignored: they are -100, which no loss and no metric counts".
std::string describe_ignored(std::int64_t ignored, std::int64_t all);

struct SegmentationOptions {
  PictureOptions picture = {};
  // The part of a mask's file name between the image's name and the extension.
  std::string mask_suffix = {};
  // The mask value of each class; empty: masks hold class ids, 0 to `classes` - 1.
  std::vector<MaskValue> mask_values = {};
  int classes = 2;
  // Values of pixels that have no class; they become ignored_target.
  std::vector<MaskValue> ignored = {};
};

// Pictures with one mask each, in two folders (image_pairs.h), such as Carvana's:
//
//   SegmentationDataset cars("data/carvana/train_hq", "data/carvana/train_masks",
//                            {.picture = {.scale = 0.5}, .mask_suffix = carvana_suffix});
//   at::Tensor x = cars.get(0).input;   // float [3, 640, 959] in [0, 1]
//   at::Tensor y = cars.get(0).target;  // int64 [640, 959], class ids
//
// Pictures are resized bicubically with antialiasing, masks to the nearest sample, both with
// Pillow's bits. Examples are sorted by their ids. The constructor throws UsageError for options
// that contradict each other, for a missing or empty folder, and if an image does not have exactly
// one mask (the message counts these and shows the first few). get() reads two files. It throws
// FormatError with the file's name if one is damaged, if their sizes differ, or if the mask has a
// value that is not a class, and UsageError if no pixels remain after scaling.
class SegmentationDataset : public Dataset {
 public:
  SegmentationDataset(const std::filesystem::path& images_folder,
                      const std::filesystem::path& masks_folder,
                      const SegmentationOptions& options = {});
  // Uses only these files.
  SegmentationDataset(std::vector<ImagePair> pairs, const SegmentationOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(pairs_.size()); }
  Sample get(std::int64_t index) const override;
  // Reads one of the files, and only the size of the other.
  Sample get_part(std::int64_t index, Part part) const override;

  // The files behind example `index`.
  const ImagePair& pair(std::int64_t index) const;

 private:
  std::vector<ImagePair> pairs_;
  SegmentationOptions options_;
  MaskClasses classes_;
};

// Converts int64 or uint8 class ids [height, width] to an image of one channel in the picture's own
// size, by the nearest sample, for write_gif_mask and write_png. Throws UsageError unless the
// tensor has two dimensions and CPU values 0 to 255.
Image mask_to_image(const at::Tensor& mask, int width, int height);

}  // namespace trestle::data
