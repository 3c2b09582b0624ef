#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trestle::data_parallel {

// A parameter or buffer of the first replica, and its copies in the other replicas.
class SharedTensor {
 public:
  enum class Kind : std::uint8_t { Parameter, Buffer };

  // A backward that brings a gradient through a copy sets `reached`.
  SharedTensor(std::string name, Kind kind, at::Tensor source, std::vector<at::Tensor> copies,
               std::shared_ptr<std::atomic<bool>> reached);

  const at::Tensor& source() const { return source_; }
  const std::string& name() const { return name_; }

  // Copies the source's values to the copies if its version changed since the last call. Unseen:
  // also if it did not, because batch norms and some optimizers' fused kernels write without a new
  // version. A live graph that saved a copy is treated as one that saved the source: autograd
  // refuses it if the version changed.
  enum class Writes : std::uint8_t { Seen, Unseen };
  void refresh(Writes writes);

  // Lets the next forward's backward through a copy end at the source, if that requires a gradient
  // now. Called again for each forward: a live graph keeps its own nodes, and autograd accumulates
  // a gradient in the stream that was current when the node was made. `streams` are these streams.
  using Streams = std::shared_ptr<const std::vector<c10::Stream>>;
  void link(const Streams& streams);

 private:
  bool alike(const at::Tensor& copy) const;  // in dtype, shape and strides

  std::string name_;
  Kind kind_;
  at::Tensor source_;
  std::vector<at::Tensor> copies_;
  std::shared_ptr<std::atomic<bool>> reached_;
  std::int64_t version_ = -1;
  const void* data_ = nullptr;
};

}  // namespace trestle::data_parallel
