#pragma once

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include "trestle/train/data_sets/data_set.h"

// Helpers of the entries in the table of data sets. Each file <name>.cpp of this folder defines one
// entry, `DataSet <name>_set()`. CMake collects the entries. Not installed.
namespace trestle::train {

// Fashion-MNIST starts from MNIST's entry.
DataSet mnist_set();

// "data/mnist" -> "data/mnist-synthetic". A name that ends in "-synthetic" stays as it is.
std::filesystem::path synthetic_name(const std::filesystem::path& folder);

// For the data sets of images with masks; `suffix` as in data::list_pairs().
OpenedData open_pairs(const recipe::Recipe& recipe, const std::string& suffix);
enum class MaskValues { ClassIds, OfTheMasks };
data::CheckReport check_pairs(const recipe::Recipe& recipe, const std::string& suffix,
                              MaskValues values, const data::CheckProgress& progress);

// The keys of [data] that describe how image files are read and divided, followed by `more`.
inline std::vector<std::string> picture_keys_and(std::vector<std::string> more) {
  more.insert(more.begin(), {"scale", "image_width", "image_height", "validation", "split_seed"});
  return more;
}

// Throws UsageError if a depth is set, which only volumes have.
void refuse_depth(const Synthesis& wanted, const char* what);

// Splits the data into training and validation by the recipe's `validation` and `split_seed`.
OpenedData divide(const recipe::Recipe& recipe, std::shared_ptr<const data::Dataset> dataset);

// "skipped photos/Thumbs.db, which is no picture" for each such file of the folder, if it exists.
void note_skipped_files(const std::filesystem::path& folder, data::CheckReport& report);

// The number of classes that targets must be below; 0 where the loss takes any number.
std::int64_t classes_to_check(const recipe::Recipe& recipe, std::int64_t in_data);

// Reads every training and validation example.
void check_opened(const recipe::Recipe& recipe, const OpenedData& opened, data::CheckReport& report,
                  const data::CheckProgress& progress);

// All examples of a data set, in order.
inline Examples all_of(std::shared_ptr<const data::Dataset> dataset) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset->size()));
  std::iota(indices.begin(), indices.end(), 0);
  return {std::move(dataset), std::move(indices)};
}

}  // namespace trestle::train
