#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trestle::recompute {

// While it lives, records which tensors without gradient this thread's operators change in place,
// and their previous values: counters, the statistics of batch norms and other state of unlisted
// modules. Keeps only copies, not the tensors.
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
  // The changed tensors that still exist outside of the function and do not share memory with
  // `results`. Last writes first: restoring the values in this order restores the original state.
  std::vector<Written> written(const std::vector<at::Tensor>& results) const;

 private:
  struct Callbacks;

  void note(const at::Tensor& tensor);

  // A changed tensor. It may have been a temporary view, and its memory may be gone.
  struct Noted {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::DispatchKeySet keys;
    std::int64_t offset;
    c10::DimVector strides;
    at::Tensor before;

    bool is(const at::Tensor& tensor) const;
    at::Tensor tensor() const;  // None if its memory is gone
  };
  std::vector<Noted> noted_;
  std::size_t most_ = 64;  // size of `noted_` at which expired entries are removed
  std::optional<at::CallbackHandle> handle_;
  WriteWatch* outer_;
};

}  // namespace trestle::recompute
