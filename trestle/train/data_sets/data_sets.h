#pragma once

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <vector>

#include "trestle/base/file_lock.h"
#include "trestle/train/data_set.h"

// Inside of the table of data sets: one function, and one file, for each.
namespace trestle::train {

// Kaggle's Carvana challenge: photos of cars, a mask each.
DataSet carvana_set();

// MNIST's handwritten digits (LeCun, Cortes, Burges), in four IDX files.
DataSet mnist_set();

// Where data are made before they are moved into place: empty at first, of this process alone while
// this lives, and removed with it.
class MakingFolder {
 public:
  // Throws StateError where another process makes the same data.
  explicit MakingFolder(const std::filesystem::path& path);
  ~MakingFolder();
  MakingFolder(const MakingFolder&) = delete;
  MakingFolder& operator=(const MakingFolder&) = delete;

  std::filesystem::path content() const { return path_ / "data"; }

 private:
  std::filesystem::path path_;
  std::optional<FileLock> lock_;
};

// Renames, and throws FileError with the reason where the system refuses. A folder is moved into
// place when it is complete, so that a synthesis that was interrupted leaves no smaller data set.
void move_into_place(const std::filesystem::path& from, const std::filesystem::path& to);

// All examples of a data set, in order.
inline Examples all_of(std::shared_ptr<const data::Dataset> dataset) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset->size()));
  std::iota(indices.begin(), indices.end(), 0);
  return {std::move(dataset), std::move(indices)};
}

}  // namespace trestle::train
