#include "trestle/data/files/image_pairs.h"

#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/listing.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

using FilesByStem = std::map<std::string, std::vector<fs::path>>;
using IdOf = std::function<std::string(const fs::path&)>;

FilesByStem files_by_stem(const fs::path& folder, const IdOf& id_of) {
  FilesByStem files;
  for (const fs::path& path : files_of(folder)) files[id_of(path)].push_back(path);
  return files;
}

std::string names(const std::vector<fs::path>& paths) {
  std::vector<std::string> parts;
  for (const fs::path& path : paths) parts.push_back(path.filename().string());
  return join(parts, ", ");
}

// "; there is a_mask.png: is mask_suffix "_mask"?" if a mask's name begins with the image's name.
std::string suffix_in_question(const std::string& id, const FilesByStem& masks) {
  const auto next = masks.upper_bound(id);
  if (next == masks.end() || !next->first.starts_with(id)) return "";
  return text("; there is ", next->second[0].filename().string(), ": is mask_suffix \"",
              next->first.substr(id.size()), "\"?");
}

}  // namespace

PairListing list_pairs(const fs::path& images_folder, const fs::path& masks_folder,
                       const std::string& mask_suffix) {
  return list_pairs(images_folder, masks_folder, mask_suffix,
                    [](const fs::path& path) { return path.stem().string(); });
}

PairListing list_pairs(const fs::path& images_folder, const fs::path& masks_folder,
                       const std::string& mask_suffix, const IdOf& id_of) {
  FilesByStem images = files_by_stem(images_folder, id_of);
  const FilesByStem masks = files_by_stem(masks_folder, id_of);
  std::error_code error;
  if (fs::equivalent(images_folder, masks_folder, error)) {
    if (mask_suffix.empty())
      throw UsageError("images and masks are in one folder, but no suffix identifies masks",
                       {.file = images_folder.string(),
                        .hint = "Set mask_suffix in [data] to the part of a mask's name after the "
                                "image's name: \"_mask\"."});
    std::erase_if(images, [&](const auto& file) { return file.first.ends_with(mask_suffix); });
  }
  if (images.empty()) {
    throw UsageError("the folder has no images", {.file = images_folder.string()});
  }
  PairListing listing;
  for (const auto& [id, image_paths] : images) {
    if (image_paths.size() > 1) {
      listing.problems.push_back(text(images_folder.string(), ": ", image_paths.size(),
                                      " images with the id ", id, ": ", names(image_paths)));
      continue;
    }
    const auto found = masks.find(id + mask_suffix);
    if (found == masks.end()) {
      listing.problems.push_back(text(masks_folder.string(), ": no mask for ",
                                      image_paths[0].string(), " (looked for ", id, mask_suffix,
                                      ".*", suffix_in_question(id, masks), ")"));
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
