// libtorch is built with NDEBUG, and its RecordFunction then never sets the flag that inputs() asks
// where a header is read without it. This file is compiled without the precompiled header for that.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "trestle/recompute/write_watch.h"

#include <ATen/Functions.h>
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

// torch calls this before every operator of the thread. The statistics of a batch norm are changed
// without a word in the operator's schema, and without a new version.
struct WriteWatch::Callbacks {
  static thread_local WriteWatch* current;  // torch hands callbacks no data of their own
  static thread_local bool paused;

  struct Pause {  // for operators of our own
    Pause() { paused = true; }
    ~Pause() { paused = false; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& operation) {
    if (paused) return nullptr;
    const char* const name = operation.name();
    const std::size_t length = std::strlen(name);
    const bool in_place = length > 0 && name[length - 1] == '_';
    if (!in_place && std::strcmp(name, "aten::batch_norm") != 0) return nullptr;
    const auto inputs = operation.inputs();
    const auto note = [&](std::size_t index) {
      if (index >= inputs.size() || !inputs[index].isTensor()) return;
      for (WriteWatch* watch = current; watch != nullptr; watch = watch->outer_)
        watch->note(inputs[index].toTensor());
    };
    if (in_place) {
      note(0);
    } else if (inputs.size() > 5 && inputs[5].isBool() && inputs[5].toBool()) {
      note(3);  // input, weight, bias, mean, variance, training, ...
      note(4);
    }
    return nullptr;
  }
};

thread_local WriteWatch* WriteWatch::Callbacks::current = nullptr;
thread_local bool WriteWatch::Callbacks::paused = false;

void WriteWatch::note(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.requires_grad() || !tensor.has_storage()) return;
  if (noted_.size() >= most_) {
    std::erase_if(noted_, [](const Noted& each) { return each.tensor.expired(); });
    most_ = std::max(most_, 2 * noted_.size());
  }
  const auto known = [&](const Noted& each) {
    return each.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  };
  if (std::any_of(noted_.begin(), noted_.end(), known)) return;
  const c10::NoGradGuard no_grad;
  const Callbacks::Pause pause;
  noted_.emplace_back(decltype(Noted::tensor)(tensor.getIntrusivePtr()), tensor.detach().clone());
}

std::vector<WriteWatch::Written> WriteWatch::written(const std::vector<at::Tensor>& results) const {
  std::vector<Written> all;
  for (const Noted& each : noted_) {
    auto impl = each.tensor.lock();
    if (!impl) continue;
    const at::Tensor tensor(std::move(impl));
    if (!is_result(tensor, results) && tensor.sizes() == each.before.sizes())
      all.push_back({.tensor = tensor, .before = each.before});
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
