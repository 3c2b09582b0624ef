#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

// What `trestle data check` runs: reads every file of a data set in full and lists everything that
// would stop a training, instead of stopping at the first.
namespace trestle::data {

struct CheckReport {
  std::int64_t count = 0;                          // good examples
  std::map<std::string, std::int64_t> sizes = {};  // "1918 x 1280 x 3" -> how many
  // One message each, with the file's name; empty means all is well.
  std::vector<std::string> problems = {};

  bool ok() const { return problems.empty(); }
};

// Called now and then with (files read, files in all).
using CheckProgress = std::function<void(std::int64_t, std::int64_t)>;

// Files that cannot be read, images without a mask, two files for one id, image and mask of
// different sizes, images that are not RGB, mask values that are not class ids below `classes`.
// Never throws for what is wrong with the data, missing and empty folders included.
CheckReport check_carvana(const std::filesystem::path& images_folder,
                          const std::filesystem::path& masks_folder, int classes = 2,
                          const CheckProgress& progress = {});

// All four files: present, whole, as many labels as images, labels 0 to 9, the
// same picture size in both parts.
CheckReport check_mnist(const std::filesystem::path& folder);

}  // namespace trestle::data
