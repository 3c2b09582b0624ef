#include "trestle/data/files/mnist_files.h"

#include <algorithm>
#include <string>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

std::string prefix(MnistPart part) { return part == MnistPart::Train ? "train" : "t10k"; }

fs::path find_file(const fs::path& folder, const std::string& stem, const std::string& kind) {
  for (const char* place : {"", "raw", "MNIST/raw", "FashionMNIST/raw"}) {
    for (const char* ending : {"", ".gz"}) {
      for (const char* separator : {"-", "."}) {
        const fs::path path = folder / place / (stem + separator + kind + ending);
        if (fs::exists(path)) return path;
      }
    }
  }
  throw UsageError(
      text("there is no file ", stem, "-", kind, " here, nor one that ends in .gz"),
      {.file = folder.string(),
       .hint = text("Download MNIST's four IDX files: tools/get_mnist ", folder.string(),
                    ". Or create synthetic ones: trestle data synthesize mnist --out ",
                    folder.string(), "-synthetic")});
}

}  // namespace

MnistFiles mnist_paths(const fs::path& folder, MnistPart part) {
  return {folder / (prefix(part) + "-images-idx3-ubyte"),
          folder / (prefix(part) + "-labels-idx1-ubyte")};
}

MnistFiles find_mnist(const fs::path& folder, MnistPart part) {
  if (!fs::is_directory(folder)) {
    throw UsageError("no such folder",
                     {.file = folder.string(),
                      .hint = text("Download MNIST: tools/get_mnist ", folder.string(),
                                   ". Or create synthetic digits: trestle data synthesize mnist "
                                   "--out ",
                                   folder.string(), "-synthetic")});
  }
  return {find_file(folder, prefix(part) + "-images", "idx3-ubyte"),
          find_file(folder, prefix(part) + "-labels", "idx1-ubyte")};
}

MnistArrays read_mnist(const fs::path& folder, MnistPart part) {
  const MnistFiles files = find_mnist(folder, part);
  MnistArrays arrays{read_idx_images(files.images), read_idx_labels(files.labels)};
  const auto labels = static_cast<std::int64_t>(arrays.labels.size());
  if (labels != arrays.images.count) {
    throw FormatError(
        text(format_count(labels), " labels, but ", format_count(arrays.images.count),
             " images in ", files.images.filename().string()),
        {.file = files.labels.string(), .hint = "The two files belong to different data sets."});
  }
  const auto bad = std::ranges::find_if(arrays.labels, [](int label) { return label > 9; });
  if (bad != arrays.labels.end()) {
    throw FormatError(
        text("label ", bad - arrays.labels.begin(), " is ", int{*bad}, ": the digits are 0 to 9"),
        {.file = files.labels.string()});
  }
  return arrays;
}

}  // namespace trestle::data
