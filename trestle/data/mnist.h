#pragma once

#include <filesystem>

#include "trestle/data/dataset.h"
#include "trestle/data/files/mnist_files.h"

namespace trestle::data {

// MNIST's handwritten digits, or other data in the same four IDX files.
//
//   MnistDataset train("data/mnist", MnistPart::Train);   // 60000 examples
//
// input: float [1, rows, columns] in [0, 1], without further normalization; target: int64 scalar 0
// to 9. The bytes are read once and kept (47 MB for the 60000). Throws like read_mnist; get()
// throws UsageError for an index out of range.
class MnistDataset : public Dataset {
 public:
  MnistDataset(const std::filesystem::path& folder, MnistPart part);

  std::int64_t size() const override { return arrays_.images.count; }
  Sample get(std::int64_t index) const override;
  std::uint64_t content_hash() const override;

 private:
  MnistArrays arrays_;
};

}  // namespace trestle::data
