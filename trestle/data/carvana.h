#pragma once

#include <filesystem>
#include <vector>

#include "trestle/data/dataset.h"
#include "trestle/data/files/carvana_files.h"
#include "trestle/data/files/image.h"

namespace trestle::data {

struct CarvanaOptions {
  double scale = 1.0;  // in (0, 1]; both sides become int(scale * side), as in Python
  int classes = 2;     // a mask value of this size or more is an error
};

// Pictures with a mask each, in the layout of Kaggle's Carvana challenge (carvana_files.h).
//
//   CarvanaDataset cars("data/carvana/train_hq", "data/carvana/train_masks", {.scale = 0.5});
//   at::Tensor x = cars.get(0).input;   // float [3, 640, 959] in [0, 1]
//   at::Tensor y = cars.get(0).target;  // int64 [640, 959], class ids
//
// Pictures are resized bicubically with antialiasing, masks to the nearest sample, both with
// Pillow's bits; examples are in the order of their ids. The constructor throws UsageError when the
// scale is not in (0, 1], a folder is missing or empty, or any image lacks its one mask (the
// message counts them and shows the first few). get() reads two files; it throws FormatError,
// naming the file, when one is damaged, their sizes differ, the picture is not RGB or the mask not
// of class ids, and UsageError when the scale leaves no pixels.
class CarvanaDataset : public Dataset {
 public:
  CarvanaDataset(const std::filesystem::path& images_folder,
                 const std::filesystem::path& masks_folder, const CarvanaOptions& options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(pairs_.size()); }
  Sample get(std::int64_t index) const override;

  // The files behind example `index`.
  const CarvanaPair& pair(std::int64_t index) const;

 private:
  std::vector<CarvanaPair> pairs_;
  CarvanaOptions options_;
};

// A picture without a mask, exactly as the data set gives it to the model: float [3, int(scale *
// height), int(scale * width)]. For `trestle predict`. Throws as get().
at::Tensor load_picture(const std::filesystem::path& path, double scale);

// int64 or uint8 class ids [height, width], back in the picture's own size with the nearest sample,
// as an image of one channel: what write_gif_mask and write_png take. Throws UsageError unless the
// tensor has two dimensions of CPU values 0 to 255.
Image mask_to_image(const at::Tensor& mask, int width, int height);

}  // namespace trestle::data
