#ifndef NDEBUG
#error "Without NDEBUG RecordFunction::inputs() throws; trestle_use_torch() in CMake defines it."
#endif

#include "trestle/recompute/write_watch.h"

#include <ATen/Functions.h>
#include <ATen/core/function_schema.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace trestle::recompute {
namespace {

bool is_result(const at::Tensor& tensor, const std::vector<at::Tensor>& results) {
  return std::any_of(results.begin(), results.end(), [&](const at::Tensor& result) {
    return result.defined() && result.has_storage() && result.is_alias_of(tensor);
  });
}

}  // namespace

// torch calls this before every operator of the thread. A batch norm changes its statistics
// although the operator's schema does not declare it, and without a new version.
struct WriteWatch::Callbacks {
  static thread_local WriteWatch* current;  // torch passes no user data to callbacks
  static thread_local bool paused;

  struct Pause {  // for operators of our own
    Pause() { paused = true; }
    ~Pause() { paused = false; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& operation) {
    if (paused) return nullptr;
    const bool norm = std::strcmp(operation.name(), "aten::batch_norm") == 0;
    const auto schema = operation.operator_schema();
    if (!norm && !(schema && schema->is_mutable())) return nullptr;
    const auto inputs = operation.inputs();
    const auto note = [&](std::size_t index) {
      if (index >= inputs.size()) return;
      std::vector<at::Tensor> tensors;
      if (inputs[index].isTensor()) tensors.push_back(inputs[index].toTensor());
      if (inputs[index].isTensorList()) tensors = inputs[index].toTensorVector();
      for (WriteWatch* watch = current; watch != nullptr; watch = watch->outer_)
        for (const at::Tensor& tensor : tensors) watch->note(tensor);
    };
    if (norm && inputs.size() > 5 && inputs[5].isBool() && inputs[5].toBool()) {
      note(3);  // input, weight, bias, mean, variance, training, ...
      note(4);
    }
    if (norm) return nullptr;
    for (std::size_t i = 0; i < schema->arguments().size(); ++i) {
      const auto* const alias = schema->arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) note(i);  // including an argument named `out`
    }
    return nullptr;
  }
};

thread_local WriteWatch* WriteWatch::Callbacks::current = nullptr;
thread_local bool WriteWatch::Callbacks::paused = false;

bool WriteWatch::Noted::is(const at::Tensor& tensor) const {
  return storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
         offset == tensor.storage_offset() && before.sizes() == tensor.sizes() &&
         before.dtype() == tensor.dtype() && strides == c10::DimVector(tensor.strides());
}

at::Tensor WriteWatch::Noted::tensor() const {
  auto impl = storage.lock();
  if (!impl) return {};
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(impl)), keys, before.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(before.sizes(), strides, offset);
  return tensor;
}

void WriteWatch::note(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.requires_grad() || !tensor.has_storage()) return;
  if (noted_.size() >= most_) {
    std::erase_if(noted_, [](const Noted& each) { return each.storage.expired(); });
    most_ = std::max(most_, 2 * noted_.size());
  }
  const auto known = [&](const Noted& each) { return each.is(tensor); };
  if (std::any_of(noted_.begin(), noted_.end(), known)) return;
  const c10::NoGradGuard no_grad;
  const Callbacks::Pause pause;
  noted_.push_back({.storage = tensor.storage().getWeakStorageImpl(),
                    .keys = tensor.key_set(),
                    .offset = tensor.storage_offset(),
                    .strides = c10::DimVector(tensor.strides()),
                    .before = tensor.detach().clone()});
}

std::vector<WriteWatch::Written> WriteWatch::written(const std::vector<at::Tensor>& results) const {
  std::vector<Written> all;
  for (auto each = noted_.rbegin(); each != noted_.rend(); ++each) {
    at::Tensor tensor = each->tensor();
    if (tensor.defined() && !is_result(tensor, results))
      all.push_back({.tensor = std::move(tensor), .before = each->before});
  }
  return all;
}

WriteWatch::WriteWatch() : outer_(std::exchange(Callbacks::current, this)) {
  if (outer_ != nullptr) return;  // its callback serves this one too
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Callbacks::start)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

WriteWatch::~WriteWatch() {
  Callbacks::current = outer_;
  if (handle_) at::removeCallback(*handle_);
}

}  // namespace trestle::recompute
