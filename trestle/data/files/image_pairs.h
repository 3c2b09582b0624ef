#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

// Pairs each image in one folder with its mask in another: image "<id>.<extension>", mask
// "<id><suffix>.<extension>". Hidden files (".DS_Store") and sub-folders are skipped.
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

// The suffix of masks in Kaggle's Carvana challenge.
inline constexpr const char* carvana_suffix = "_mask";

// Returns all pairs and lists every problem. Masks without an image are allowed (a user may keep a
// few images of a set). The two folders may be the same if a suffix identifies masks. Throws
// UsageError for a folder that does not exist or has no images, FileError if it cannot be read.
//
//   PairListing cars = list_pairs("data/cars/train_hq", "data/cars/train_masks", carvana_suffix);
//   PairListing same_names = list_pairs("photos", "masks", "");
PairListing list_pairs(const std::filesystem::path& images_folder,
                       const std::filesystem::path& masks_folder, const std::string& mask_suffix);

// The same for files of other kinds: `id_of` gives a file's name without its ending.
PairListing list_pairs(const std::filesystem::path& images_folder,
                       const std::filesystem::path& masks_folder, const std::string& mask_suffix,
                       const std::function<std::string(const std::filesystem::path&)>& id_of);

}  // namespace trestle::data
