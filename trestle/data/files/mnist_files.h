#pragma once

#include <filesystem>

#include "trestle/data/files/idx.h"

// MNIST's four files, under the names of the original (either spelling: "train-images-idx3-ubyte"
// or "train-images.idx3-ubyte").
namespace trestle::data {

enum class MnistPart {
  Train,  // train-images-idx3-ubyte, train-labels-idx1-ubyte
  Test,   // t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte
};

struct MnistFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

// The paths of a part inside `folder`. Throws UsageError when the folder or one of the two files is
// missing (a file that is there only as .gz is named, with the way to unpack it).
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
