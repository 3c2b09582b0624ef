#pragma once

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include "trestle/train/data_set.h"

// Inside of the table of data sets: one function, and one file, for each.
namespace trestle::train {

// Kaggle's Carvana challenge: photos of cars, a mask each.
DataSet carvana_set();

// Images with a mask each, in two folders of the user's own.
DataSet segmentation_set();

// Images in a folder for each class.
DataSet classification_set();

// MNIST's handwritten digits (LeCun, Cortes, Burges), in four IDX files.
DataSet mnist_set();

// Zalando's Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): clothes, in the same files.
DataSet fashion_mnist_set();

// Random numbers, in no files.
DataSet random_set();

// "data/mnist" -> "data/mnist-synthetic", which stays as it is.
std::filesystem::path synthetic_name(const std::filesystem::path& folder);

// NumPy's arrays.
DataSet arrays_set();

// What the sets of images with masks share; `suffix` as in data::list_pairs().
OpenedData open_pairs(const recipe::Recipe& recipe, const std::string& suffix);
enum class MaskValues { ClassIds, OfTheMasks };
data::CheckReport check_pairs(const recipe::Recipe& recipe, const std::string& suffix,
                              MaskValues values, const data::CheckProgress& progress);

// The keys of [data] that say how image files are read.
inline std::vector<std::string> picture_keys_and(std::vector<std::string> more) {
  more.insert(more.begin(), {"scale", "image_width", "image_height"});
  return more;
}

// Some of the data for training and some for validation, as the recipe says.
OpenedData divide(const recipe::Recipe& recipe, std::shared_ptr<const data::Dataset> dataset);

// Reads every example of both parts.
void check_opened(const recipe::Recipe& recipe, const OpenedData& opened, data::CheckReport& report,
                  const data::CheckProgress& progress);

// All examples of a data set, in order.
inline Examples all_of(std::shared_ptr<const data::Dataset> dataset) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset->size()));
  std::iota(indices.begin(), indices.end(), 0);
  return {std::move(dataset), std::move(indices)};
}

}  // namespace trestle::train
