#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <vector>

namespace trestle::recompute {

// While it lives, notes which tensors without gradient this thread's operators change in place: counters
// and the statistics of batch norms, of modules that nobody has named. Keeps none of them alive.
class WriteWatch {
 public:
  WriteWatch();
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  // Those that are still there, so that they are not the function's own, but for `results` and what
  // shares memory with them.
  std::vector<at::Tensor> written(const std::vector<at::Tensor>& results) const;

 private:
  struct Callbacks;

  void note(const at::Tensor& tensor);

  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> tensors_;
  std::size_t most_ = 64;  // before those that have gone are looked for
  std::optional<at::CallbackHandle> handle_;
  WriteWatch* outer_;
};

}  // namespace trestle::recompute
