#include "trestle/data/files/carvana_files.h"

#include <algorithm>
#include <map>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

using FilesByStem = std::map<std::string, std::vector<fs::path>>;

FilesByStem files_by_stem(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw UsageError("no such folder",
                     {.file = folder.string(),
                      .hint = "Give the folders of the data, or make synthetic data: trestle data "
                              "synthesize carvana"});
  }
  FilesByStem files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || entry->is_directory()) continue;
    files[entry->path().stem().string()].push_back(entry->path());
  }
  if (error)
    throw FileError(text("cannot list the folder: ", error.message()), {.file = folder.string()});
  for (auto& [stem, paths] : files) std::ranges::sort(paths);
  return files;
}

std::string names(const std::vector<fs::path>& paths) {
  std::vector<std::string> parts;
  for (const fs::path& path : paths) parts.push_back(path.filename().string());
  return join(parts, ", ");
}

}  // namespace

CarvanaListing list_carvana(const fs::path& images_folder, const fs::path& masks_folder) {
  const FilesByStem images = files_by_stem(images_folder);
  const FilesByStem masks = files_by_stem(masks_folder);
  if (images.empty()) {
    throw UsageError("the folder holds no images", {.file = images_folder.string()});
  }
  CarvanaListing listing;
  for (const auto& [id, image_paths] : images) {
    if (image_paths.size() > 1) {
      listing.problems.push_back(text(images_folder.string(), ": ", image_paths.size(),
                                      " images with the id ", id, ": ", names(image_paths)));
      continue;
    }
    const auto found = masks.find(id + "_mask");
    if (found == masks.end()) {
      const fs::path shown = images_folder.filename() / image_paths[0].filename();
      listing.problems.push_back(text(masks_folder.string(), ": no mask for ", shown.string(),
                                      " (looked for ", id, "_mask.*)"));
    } else if (found->second.size() > 1) {
      listing.problems.push_back(text(masks_folder.string(), ": ", found->second.size(),
                                      " masks for ", id, ": ", names(found->second)));
    } else {
      listing.pairs.push_back({id, image_paths[0], found->second[0]});
    }
  }
  return listing;
}

}  // namespace trestle::data
