#include "trestle/train/predict/output_folder.h"

#include <map>
#include <system_error>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

void refuse_folder_of_images(const std::filesystem::path& images,
                             const std::filesystem::path& out) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::is_directory(images) ? images : fs::absolute(images).parent_path();
  std::error_code not_there;
  if (!fs::equivalent(folder, out, not_there)) return;
  throw UsageError(
      text("'out' is the folder of the images, ", out.string(),
           ": what is written there would be taken for images by the next prediction"),
      {.hint = "Choose another folder with --out, which may be a new one inside of it."});
}

std::vector<std::string> distinct_names(const std::vector<std::filesystem::path>& files,
                                        std::vector<std::string> names) {
  for (bool again = true; std::exchange(again, false);) {
    std::map<std::string, int> times;
    for (const std::string& name : names) ++times[name];
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string whole = files[i].filename().string();
      if (times[names[i]] < 2 || names[i] == whole) continue;
      names[i] = whole;
      again = true;
    }
  }
  return names;
}

}  // namespace trestle::train
