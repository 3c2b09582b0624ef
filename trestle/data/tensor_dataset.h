#pragma once

#include <vector>

#include "trestle/data/dataset.h"

namespace trestle::data {

// Tensors in memory, of any type, with the examples along their first dimension, as in Python's
// torch.utils.data.TensorDataset. The first one is the input, the second the target, and the rest
// are `more` of a Sample and a Batch.
//
//   auto points = std::make_shared<TensorDataset>(
//       std::vector<at::Tensor>{at::rand({1000, 20}), at::randint(10, {1000}, at::kLong)});
//   Sample sample = points->get(7);   // input: float [20]; target: int64 scalar; name: "7"
//
// An example is a view of the tensors: nothing is copied, and changes of the tensors show in it. A
// single tensor has no targets: read it with Part::Input. The constructor throws UsageError for no
// tensors, for one that is not a dense CPU tensor or has no dimension, and for different numbers of
// examples; get() throws it for an index out of range.
class TensorDataset : public Dataset {
 public:
  explicit TensorDataset(std::vector<at::Tensor> tensors);

  std::int64_t size() const override { return tensors_[0].size(0); }
  Sample get(std::int64_t index) const override;

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace trestle::data
