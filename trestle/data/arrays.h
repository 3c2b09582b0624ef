#pragma once

#include <string>

#include "trestle/data/dataset.h"

namespace trestle::data {

// Two arrays, examples along the first dimension: NumPy's (files/npy.h says how they are named), and
// tensors of Python's torch.save, alone in "x.pt" or, of a dict of tensors, "set.pt:x" (.pth too).
//
//   ArrayDataset rows("data/x.npy", "data/y.npy");          // x: float32 [1000, 20]
//   at::Tensor x = rows.get(0).input;                       // float [20]
//   ArrayDataset images("digits.npz:x", "digits.npz:y");    // x: uint8 [1000, 1, 28, 28]
//   at::Tensor y = images.get(0).target;                    // int64 scalar
//
// Inputs become float, of bytes (uint8) their 255th part; whole numbers of other types become int64.
// Targets of whole numbers and bools become int64, others float. Both are kept in memory. The
// constructor throws FileError for a file that cannot be read, and FormatError for one that holds no
// such array, for an array without examples, and where the two have not as many examples.
class ArrayDataset : public Dataset {
 public:
  ArrayDataset(const std::string& inputs, const std::string& targets);

  std::int64_t size() const override { return inputs_.size(0); }
  Sample get(std::int64_t index) const override;

  // One more than the largest target where targets are int64 and none is negative, else 0.
  std::int64_t classes() const;

 private:
  at::Tensor inputs_, targets_;
};

}  // namespace trestle::data
