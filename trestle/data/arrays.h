#pragma once

#include <string>

#include "trestle/data/dataset.h"

namespace trestle::data {

// Two arrays of examples along the first dimension. They are NumPy arrays (files/npy.h has their
// paths) or tensors of Python's torch.save: a single one in "x.pt", or one of a dict of tensors as
// "set.pt:x" (.pth too).
//
//   ArrayDataset rows("data/x.npy", "data/y.npy");          // x: float32 [1000, 20]
//   at::Tensor x = rows.get(0).input;                       // float [20]
//   ArrayDataset images("digits.npz:x", "digits.npz:y");    // x: uint8 [1000, 1, 28, 28]
//   at::Tensor y = images.get(0).target;                    // int64 scalar
//
// Inputs become float: bytes (uint8) are divided by 255, other integers and bools keep their
// values. A model of token ids converts them in its first layer: x.to(at::kLong). Targets of
// integers and bools become int64, other targets float. Both are kept in memory. The constructor
// throws FileError for a file that cannot be read. It throws FormatError for a file without such an
// array, for an array without examples, for inputs that float cannot hold (integers above 2^24),
// and if the two have different numbers of examples. It throws UsageError for a file of another
// kind (.csv).
class ArrayDataset : public Dataset {
 public:
  ArrayDataset(const std::string& inputs, const std::string& targets);

  std::int64_t size() const override { return inputs_.size(0); }
  Sample get(std::int64_t index) const override;
  std::uint64_t content_hash() const override;

  // The largest target plus one if targets are int64, else 0.
  std::int64_t classes() const;

  // The number of all targets, and of those that are ignored: int64 targets of -100, as in torch's
  // losses.
  std::int64_t target_count() const { return targets_.numel(); }
  std::int64_t ignored_count() const;

 private:
  at::Tensor inputs_, targets_;
};

}  // namespace trestle::data
