#include "trestle/nn/buffer_keeper.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace trestle::nn {

BufferKeeper::BufferKeeper(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
  const at::NoGradGuard no_grad;
  // A norm layer that does not track its statistics has undefined buffers.
  std::erase_if(buffers_, [](const at::Tensor& buffer) { return !buffer.defined(); });
  for (const auto& buffer : buffers_) copies_.push_back(buffer.clone());
}

BufferKeeper::~BufferKeeper() {
  // variable_data() has a version counter of its own, so a graph that saved the buffer still runs
  // backward.
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].variable_data().copy_(copies_[i]);
}

}  // namespace trestle::nn
