#include "trestle/data/files/detail/class_folders.h"

#include <algorithm>
#include <functional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/listing.h"

namespace trestle::data {

namespace fs = std::filesystem;

namespace {

using Refuse = std::function<void(const UsageError&)>;  // may throw the error

ClassFolders list_folders(const fs::path& folder, const std::vector<std::string>& classes,
                          const Refuse& refuse) {
  const std::vector<fs::path> folders = folders_of(folder);
  ClassFolders found{.classes = classes};
  if (classes.empty())
    for (const fs::path& each : folders) found.classes.push_back(each.filename().string());
  if (found.classes.size() < 2)
    throw UsageError(
        text("there are ", folders.size(), " folders here, but at least two classes are needed"),
        {.file = folder.string(),
         .hint = "Sort the images into a folder for each class: FOLDER/cats/1.jpg, "
                 "FOLDER/dogs/1.jpg."});
  for (const fs::path& each : folders) {
    const std::string name = each.filename().string();
    const auto at = std::ranges::find(found.classes, name);
    if (at == found.classes.end()) {
      refuse(UsageError(
          text("the class '", name, "' is not one of ", join(classes, ", ")),
          {.file = each.string(), .hint = "Training and validation need the same class folders."}));
      continue;
    }
    const std::vector<fs::path> images = files_of(each);
    if (images.empty() && classes.empty())
      refuse(UsageError("the class has no images",
                        {.file = each.string(), .hint = "Add images to it, or remove it."}));
    for (const fs::path& image : images)
      found.images.push_back({image, static_cast<int>(at - found.classes.begin())});
  }
  return found;
}

}  // namespace

ClassFolders list_class_folders(const fs::path& folder, const std::vector<std::string>& classes) {
  return list_folders(folder, classes, [](const UsageError& error) { throw error; });
}

ClassFolders check_class_folders(const fs::path& folder, const std::vector<std::string>& classes,
                                 std::vector<std::string>& problems) {
  return list_folders(folder, classes,
                      [&](const UsageError& error) { problems.emplace_back(error.what()); });
}

}  // namespace trestle::data
