#pragma once

#include <filesystem>
#include <string>
#include <vector>

// Which files make up a folder pair in Carvana's layout: pictures "<id>.<anything>" in one folder,
// masks "<id>_mask.<anything>" in another. Hidden files (".DS_Store") and sub-folders are skipped.
namespace trestle::data {

struct CarvanaPair {
  std::string id;
  std::filesystem::path image;
  std::filesystem::path mask;
};

struct CarvanaListing {
  std::vector<CarvanaPair> pairs = {};  // sorted by id: the same order on every file system
  // Images without a mask, two files for one id; one sentence each.
  std::vector<std::string> problems = {};
};

// Pairs what can be paired and lists every problem. Masks without an image are no problem (one may
// keep a few images of a set). Throws UsageError when a folder does not exist or holds no images,
// FileError when it cannot be read.
CarvanaListing list_carvana(const std::filesystem::path& images_folder,
                            const std::filesystem::path& masks_folder);

}  // namespace trestle::data
