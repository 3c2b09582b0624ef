#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"
#include "trestle/data/files/class_folders.h"
#include "trestle/data/picture.h"

namespace trestle::data {

// Pictures in a folder for each class (class_folders.h).
//
//   ClassificationDataset flowers("data/flowers", {.width = 32, .height = 32});
//   at::Tensor x = flowers.get(0).input;   // float [3, 32, 32] in [0, 1]
//   at::Tensor y = flowers.get(0).target;  // int64 scalar: flowers.classes()[y] is its folder
//
// The constructors throw as list_class_folders, and UsageError for options that do not go together;
// get() throws as load_picture. Examples are named "daisy/1.jpg".
class ClassificationDataset : public Dataset {
 public:
  explicit ClassificationDataset(const std::filesystem::path& folder,
                                 const PictureOptions& options = {},
                                 const std::vector<std::string>& classes = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.images.size()); }
  Sample get(std::int64_t index) const override;
  // For a target alone no file is read.
  Sample get_part(std::int64_t index, Part part) const override;

  const std::vector<std::string>& classes() const { return files_.classes; }

  // How many examples each class has.
  std::vector<std::int64_t> counts() const;

 private:
  ClassFolders files_;
  PictureOptions options_;
};

}  // namespace trestle::data
