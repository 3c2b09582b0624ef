#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"
#include "trestle/data/files/detail/class_folders.h"
#include "trestle/data/picture.h"

namespace trestle::data {

// Pictures in one folder for each class: "<folder>/<class>/<image>".
//
//   ClassificationDataset flowers("data/flowers", {.width = 32, .height = 32});
//   at::Tensor x = flowers.get(0).input;   // float [3, 32, 32] in [0, 1]
//   at::Tensor y = flowers.get(0).target;  // int64 scalar: index into flowers.classes()
//
// The constructors throw like list_class_folders, and UsageError for options that contradict each
// other; get() throws like load_picture. Examples are named "daisy/1.jpg".
class ClassificationDataset : public Dataset {
 public:
  explicit ClassificationDataset(const std::filesystem::path& folder,
                                 const PictureOptions& options = {},
                                 const std::vector<std::string>& classes = {});

  // Uses only these files.
  ClassificationDataset(ClassFolders files, const PictureOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.images.size()); }
  Sample get(std::int64_t index) const override;
  // Reads no file for Part::Target.
  Sample get_part(std::int64_t index, Part part) const override;

  const std::vector<std::string>& classes() const { return files_.classes; }

  // Number of examples of each class.
  std::vector<std::int64_t> counts() const;

 private:
  ClassFolders files_;
  PictureOptions options_;
};

}  // namespace trestle::data
