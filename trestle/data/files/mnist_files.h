#pragma once

#include <filesystem>

#include "trestle/data/files/idx.h"

// MNIST's four files, under the names of the original (either spelling: "train-images-idx3-ubyte"
// or "train-images.idx3-ubyte"), as they are or gzip-compressed (.gz). Fashion-MNIST has the same.
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

// The paths of a part inside `folder`, or where torchvision puts them in it: MNIST/raw,
// FashionMNIST/raw, raw. Throws UsageError when the folder or one of the two files is missing.
MnistFiles find_mnist(const std::filesystem::path& folder, MnistPart part);

// The paths under which a part is written.
MnistFiles mnist_paths(const std::filesystem::path& folder, MnistPart part);

struct MnistArrays {
  IdxImages images;
  IdxLabels labels;
};

// Reads a part and checks what needs both files: as many labels as images, labels 0 to 9. Throws as
// above, and FormatError.
MnistArrays read_mnist(const std::filesystem::path& folder, MnistPart part);

}  // namespace trestle::data
