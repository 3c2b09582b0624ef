#include "trestle/nn/buffer_keeper.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace trestle::nn {

BufferKeeper::BufferKeeper(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers_)
    copies_.push_back(buffer.defined() ? buffer.detach().clone() : buffer);
}

BufferKeeper::~BufferKeeper() { put_in(copies_); }

void BufferKeeper::put_in(const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    // A norm layer that does not track its statistics has undefined buffers. variable_data() has a
    // separate version counter, so a graph that saved the buffer still runs backward.
    if (buffers_[i].defined()) buffers_[i].variable_data().copy_(values[i]);
  }
}

}  // namespace trestle::nn
