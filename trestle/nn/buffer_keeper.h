#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trestle::nn {

// Buffers as they were: copies them, and puts the copies back at its end without autograd noticing.
// For work that must not count a batch twice in batch-norm statistics: recomputation, profiling.
class BufferKeeper {
 public:
  explicit BufferKeeper(std::vector<at::Tensor> buffers);
  ~BufferKeeper();
  BufferKeeper(const BufferKeeper&) = delete;
  BufferKeeper& operator=(const BufferKeeper&) = delete;

  // Meanwhile the buffers have these values, one for each; likewise without autograd noticing.
  void put_in(const std::vector<at::Tensor>& values);

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;
};

}  // namespace trestle::nn
