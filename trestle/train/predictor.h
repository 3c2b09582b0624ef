#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/train/additions.h"

// Masks for new images, from a run's weights.
//
//   train::predict({.run = "runs/unet_quick", .images = "new_photos", .out = "masks"});
namespace trestle::train {

struct PredictOptions {
  // A run folder (its best weights), or a .safetensors file beside a recipe.toml.
  std::filesystem::path run;
  std::filesystem::path images;  // a folder of images, or one image
  std::filesystem::path out;     // made if missing
  std::string devices = {};      // "" = those of the run
  models::OwnModels models = {};
  Additions additions = {};
  // Called after each image with (done, all).
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct PredictResult {
  std::vector<std::filesystem::path> masks;
  std::vector<std::string> problems;  // one for each image that could not be read, with its name
  double seconds = 0;
};

// Writes <out>/<id>_mask.png for each image <id>.*, in the image's own size: grey, class 0 black,
// the last class white. Of images that differ only in their ending ("a.jpg", "a.png") the ending
// stays in the name: a.jpg_mask.png. Where `out` is the images' own folder, masks written there
// before are no images. Throws UsageError for missing folders and for a run that does not make
// masks, FormatError for weights that are not right. An image that cannot be read is passed over and
// stands among the problems; masks already written stay.
PredictResult predict(const PredictOptions& options);

}  // namespace trestle::train
