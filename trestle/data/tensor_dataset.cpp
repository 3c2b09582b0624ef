#include "trestle/data/tensor_dataset.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw UsageError("a TensorDataset needs at least one tensor");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    at::Tensor& tensor = tensors_[i];
    const std::string which = text("tensor ", i, " of a TensorDataset ");
    if (!tensor.defined()) throw UsageError(which + "is undefined");
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided)
      throw UsageError(text(which, "is ", tensor.layout(), " on ", tensor.device()),
                       {.hint = "Examples are dense tensors on the CPU; batches are copied to "
                                "devices from there."});
    if (tensor.dim() == 0)
      throw UsageError(which + "is a single number",
                       {.hint = "Examples are counted by the first dimension."});
    if (tensor.size(0) != tensors_[0].size(0))
      throw UsageError(text(which, "has ", tensor.size(0), " examples, but the first one has ",
                            tensors_[0].size(0)));
    // The loader copies bytes, which do not include a pending conjugation or negation.
    tensor = tensor.detach().resolve_conj().resolve_neg();
  }
}

Sample TensorDataset::get(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw UsageError(text("example ", index, " of ", size(), " in the tensors"));
  Sample sample{.input = tensors_[0][index], .name = std::to_string(index)};
  if (tensors_.size() > 1) sample.target = tensors_[1][index];
  for (std::size_t i = 2; i < tensors_.size(); ++i) sample.more.push_back(tensors_[i][index]);
  return sample;
}

}  // namespace trestle::data
