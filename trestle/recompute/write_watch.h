#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trestle::recompute {

// While it lives, notes which tensors without gradient this thread's operators change in place, and what
// they were before: counters, the statistics of batch norms and what else modules keep that nobody has
// named. Keeps none of them alive, but for its copies.
class WriteWatch {
 public:
  WriteWatch();
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  struct Written {
    at::Tensor tensor;
    at::Tensor before;
  };
  // Those whose memory is still there, so that they are not the function's own, but for what shares it
  // with `results`. Last writes first: put back in this order, all is as it was.
  std::vector<Written> written(const std::vector<at::Tensor>& results) const;

 private:
  struct Callbacks;

  void note(const at::Tensor& tensor);

  // A tensor, maybe a view that has gone, of memory that may be there.
  struct Noted {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::DispatchKeySet keys;
    std::int64_t offset;
    c10::DimVector strides;
    at::Tensor before;

    bool is(const at::Tensor& tensor) const;
    at::Tensor again() const;  // None where its memory has gone
  };
  std::vector<Noted> noted_;
  std::size_t most_ = 64;  // before those that have gone are looked for
  std::optional<at::CallbackHandle> handle_;
  WriteWatch* outer_;
};

}  // namespace trestle::recompute
