#include "trestle/data/classification.h"

#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {

ClassificationDataset::ClassificationDataset(const std::filesystem::path& folder,
                                             const PictureOptions& options,
                                             const std::vector<std::string>& classes)
    : ClassificationDataset(list_class_folders(folder, classes), options) {}

ClassificationDataset::ClassificationDataset(ClassFolders files, const PictureOptions& options)
    : files_(std::move(files)), options_(options) {
  check_picture_options(options);
}

Sample ClassificationDataset::get(std::int64_t index) const { return get_part(index, Part::Both); }

Sample ClassificationDataset::get_part(std::int64_t index, Part part) const {
  if (index < 0 || index >= size()) {
    throw UsageError(text("example ", index, " of ", size(), " images in class folders"));
  }
  const ClassifiedImage& image = files_.images[static_cast<std::size_t>(index)];
  const std::string& name = files_.classes[static_cast<std::size_t>(image.label)];
  return {part == Part::Target ? at::Tensor() : load_picture(image.path, options_),
          at::scalar_tensor(static_cast<std::int64_t>(image.label), at::kLong),
          text(name, "/", image.path.filename().string())};
}

std::vector<std::int64_t> ClassificationDataset::counts() const {
  std::vector<std::int64_t> counts(files_.classes.size(), 0);
  for (const ClassifiedImage& image : files_.images)
    ++counts[static_cast<std::size_t>(image.label)];
  return counts;
}

}  // namespace trestle::data
