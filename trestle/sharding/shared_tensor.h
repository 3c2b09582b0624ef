#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trestle::sharding::detail {

// A parameter or buffer of the first replica, and its copies in the others.
class SharedTensor {
 public:
  enum class Kind : std::uint8_t { Parameter, Buffer };

  // `reached` is set when a backward brings a gradient through a copy.
  SharedTensor(std::string name, Kind kind, at::Tensor source, std::vector<at::Tensor> copies,
               std::shared_ptr<std::atomic<bool>> reached);

  const at::Tensor& source() const { return source_; }
  const std::string& name() const { return name_; }

  // The copies take over the source's values where these were changed since the last time, as far
  // as the source's version tells; with Unseen also where it does not tell: batch norms and some
  // optimizers' fused kernels write without leaving a trace. A graph under way that has kept a copy
  // is in either case treated as with the source itself: autograd refuses it where the version
  // tells.
  enum class Writes : std::uint8_t { Seen, Unseen };
  void refresh(Writes writes);

  // The next forward's backward through a copy ends at the source, if that requires a gradient now.
  // Anew for each forward: a graph under way keeps the one before, and autograd ties the place
  // where a gradient is added up to the stream that is current then, as `streams` are.
  using Streams = std::shared_ptr<const std::vector<c10::Stream>>;
  void link(const Streams& streams);

 private:
  bool alike(const at::Tensor& copy) const;  // in dtype, shape and order of memory

  std::string name_;
  Kind kind_;
  at::Tensor source_;
  std::vector<at::Tensor> copies_;
  std::shared_ptr<std::atomic<bool>> reached_;
  std::int64_t version_ = -1;
  const void* data_ = nullptr;
};

}  // namespace trestle::sharding::detail
