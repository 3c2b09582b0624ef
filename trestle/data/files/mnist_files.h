#pragma once

#include <filesystem>

#include "trestle/data/files/detail/idx.h"

// MNIST's four files, with the original names (either spelling: "train-images-idx3-ubyte" or
// "train-images.idx3-ubyte"), plain or gzip-compressed (.gz). Fashion-MNIST uses the same names.
namespace trestle::data {

enum class MnistPart {
  Train,  // train-images-idx3-ubyte, train-labels-idx1-ubyte
  Test,   // t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte
};

inline constexpr int mnist_classes = 10;

struct MnistFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

// The paths of a part inside `folder`, or in torchvision's sub-folders: MNIST/raw,
// FashionMNIST/raw, raw. Throws UsageError if the folder or one of the two files is missing.
MnistFiles find_mnist(const std::filesystem::path& folder, MnistPart part);

// The paths for writing a part.
MnistFiles mnist_paths(const std::filesystem::path& folder, MnistPart part);

struct MnistArrays {
  IdxImages images;
  IdxLabels labels;
};

// Reads a part and checks that there is one label for each image, and that labels are 0 to 9.
// Throws like find_mnist, and FormatError.
MnistArrays read_mnist(const std::filesystem::path& folder, MnistPart part);

}  // namespace trestle::data
