#pragma once

#include <filesystem>
#include <string>
#include <vector>

// Which files of two folders are an image and its mask: image "<id>.<anything>" in the one, mask
// "<id><suffix>.<anything>" in the other. Hidden files (".DS_Store") and sub-folders are skipped.
namespace trestle::data {

struct ImagePair {
  std::string id;
  std::filesystem::path image;
  std::filesystem::path mask;
};

struct PairListing {
  std::vector<ImagePair> pairs = {};  // sorted by id: the same order on every file system
  // Images without a mask, two files for one id; one sentence each.
  std::vector<std::string> problems = {};
};

// What Kaggle's Carvana challenge has between id and ending.
inline constexpr const char* carvana_suffix = "_mask";

// Pairs what can be paired and lists every problem. Masks without an image are no problem (one may
// keep a few images of a set). The two folders may be one, if there is a suffix to tell masks by.
// Throws UsageError when a folder does not exist or holds no images, FileError when it cannot be
// read.
//
//   PairListing cars = list_pairs("data/cars/train_hq", "data/cars/train_masks", carvana_suffix);
//   PairListing same_names = list_pairs("photos", "masks", "");
PairListing list_pairs(const std::filesystem::path& images_folder,
                       const std::filesystem::path& masks_folder, const std::string& mask_suffix);

}  // namespace trestle::data
