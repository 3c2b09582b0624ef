#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trestle::nn {

// Copies buffers and restores them in its destructor without changing autograd's versions. For work
// that must not update batch-norm statistics twice: recomputation, profiling.
class BufferKeeper {
 public:
  explicit BufferKeeper(std::vector<at::Tensor> buffers);
  ~BufferKeeper();
  BufferKeeper(const BufferKeeper&) = delete;
  BufferKeeper& operator=(const BufferKeeper&) = delete;

  // Sets the buffers to these values, one for each, until the end; also without changing versions.
  void put_in(const std::vector<at::Tensor>& values);

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;
};

}  // namespace trestle::nn
