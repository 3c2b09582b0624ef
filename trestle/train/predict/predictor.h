#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/overwrite.h"
#include "trestle/models/model.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/predict/prediction_table.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// Predicts masks or classes for new images with the weights of a run.
//
//   train::predict({.run = "runs/unet_quick", .images = "new_photos", .out = "masks"});
//   train::predict({.run = "runs/flowers", .images = "new_photos", .out = "."});
namespace trestle::train {

struct PredictOptions {
  // A run folder, or a .safetensors file beside a recipe.toml.
  std::filesystem::path run;
  Checkpoint checkpoint = Checkpoint::Best;  // of a run folder
  std::filesystem::path images;              // a folder of images, or one image
  std::filesystem::path out;                 // created if missing; not the images' own folder
  Overwrite overwrite = Overwrite::Refuse;   // of masks and tables that are in `out` already
  int top_k = 1;             // number of classes for each image, the most probable first
  std::string devices = {};  // "" = the run's
  // For volumes, the fields data.overlap and data.blend where they differ from the run's, as
  // set_field() takes them: {{"data.overlap", "0.25"}, {"data.blend", "linear"}}.
  std::vector<std::pair<std::string, std::string>> changes = {};
  models::OwnModels models = {};
  UserParts user_parts = {};
  // Called after each image with (done, all).
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct PredictResult {
  std::vector<std::filesystem::path> images;    // with a prediction
  std::vector<std::filesystem::path> masks;     // one for each of them, or
  std::vector<std::filesystem::path> pictures;  // of volumes: one for each of them
  std::vector<PredictedClasses> classes;        // ... one for each of them
  std::filesystem::path table;                  // of all classes
  std::vector<std::string> problems;            // one for each unreadable image, with its name
  double seconds = 0;
};

// A model that scores each pixel: writes <out>/<id>_mask.png for each image <id>.*, in the image's
// own size, in grey: class 0 black, the last class white. For images that differ only in their
// ending ("a.jpg", "a.png") the ending stays in the name: a.jpg_mask.png.
//
// A model that scores each image: writes <out>/predictions.csv (prediction_table.h). Images are
// converted to the form of the run's data, 28 x 28 pixels in grey for MNIST.
//
// A run that was trained on volumes: writes <out>/<id>_mask.nii.gz (or .nii, .npy, as the volume)
// with the class of each voxel, in the volume's own space, and <out>/<id>_slices.png. The model
// runs over windows of the run's `patch`, whose probabilities are blended
// (data/sliding_window.h).
//
// Throws UsageError for missing folders, for a run that was not trained on images, for `changes` of
// other fields or of a run that was not trained on volumes, for an `out`
// that is the images' own folder, where later predictions would read masks as images, and, unless
// `overwrite` allows it, for files of these names that exist already. Throws FormatError for
// invalid weights, and for weights that are NaN or infinite. An unreadable image is skipped and
// reported among the problems; masks that were already written stay.
PredictResult predict(const PredictOptions& options);

// One object for each image, one a line: {"file": "a.jpg", "mask": "masks/a_mask.png"}, or {"file":
// "a.jpg", "class": "rose", "class_id": 2, "probability": 0.93, "top": [...]}; then one for each
// problem: {"problem": "b.jpg: ..."}.
std::string to_json(const PredictResult& result);

}  // namespace trestle::train
