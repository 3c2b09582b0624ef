#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/train/prediction_table.h"
#include "trestle/train/run_checkpoint.h"
#include "trestle/train/user_parts.h"

// Masks or classes for new images, from a run's weights.
//
//   train::predict({.run = "runs/unet_quick", .images = "new_photos", .out = "masks"});
//   train::predict({.run = "runs/flowers", .images = "new_photos", .out = "."});
namespace trestle::train {

struct PredictOptions {
  // A run folder, or a .safetensors file beside a recipe.toml.
  std::filesystem::path run;
  Checkpoint checkpoint = Checkpoint::Best;  // of a run folder
  std::filesystem::path images;              // a folder of images, or one image
  std::filesystem::path out;                 // made if missing
  int top_k = 1;             // of classes: how many for each image, the most probable first
  std::string devices = {};  // "" = those of the run
  models::OwnModels models = {};
  UserParts user_parts = {};
  // Called after each image with (done, all).
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct PredictResult {
  std::vector<std::filesystem::path> images;  // for which there is a prediction
  std::vector<std::filesystem::path> masks;   // one for each of them, or
  std::vector<PredictedClasses> classes;      // ... one for each of them
  std::filesystem::path table;                // that has all classes
  std::vector<std::string> problems;  // one for each image that could not be read, with its name
  double seconds = 0;
};

// A model that gives scores for each pixel: writes <out>/<id>_mask.png for each image <id>.*, in the
// image's own size: grey, class 0 black, the last class white. Of images that differ only in their
// ending ("a.jpg", "a.png") the ending stays in the name: a.jpg_mask.png.
//
// A model that gives scores for each image: writes <out>/predictions.csv (prediction_table.h).
// Images are made what the run's data were, 28 x 28 pixels in grey for MNIST.
//
// Where `out` is the images' own folder, what was written there before is no image. Throws UsageError
// for missing folders and for a run that did not learn from images, FormatError for weights that are
// not right. An image that cannot be read is passed over and stands among the problems; masks already
// written stay.
PredictResult predict(const PredictOptions& options);

// One object for each image, one a line: {"file": "a.jpg", "mask": "masks/a_mask.png"}, or
// {"file": "a.jpg", "class": "rose", "class_id": 2, "probability": 0.93, "top": [...]}; then one for
// each problem: {"problem": "b.jpg: ..."}.
std::string to_json(const PredictResult& result);

}  // namespace trestle::train
