#include "trestle/recompute/recomputation.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"

namespace trestle::recompute {
namespace {

// Leaves the function from inside of an operator. If that operator belongs to a backward inside of
// the function, autograd's engine only passes exceptions derived from std::exception.
struct StopEarly : std::exception {
  const char* what() const noexcept override {
    return "a recomputed function has saved enough tensors";
  }
};

constexpr const char* hint =
    "The function must do the same both times. Random numbers from the function's own generator, "
    "values that it changes outside, and the time are not restored. Threads that it starts draw "
    "other random numbers: draw them in the calling thread. keep_random = false allows other "
    "values.";

}  // namespace

TensorMetadata TensorMetadata::of(const at::Tensor& tensor) {
  return {.sizes = c10::DimVector(tensor.sizes()),
          .dtype = tensor.scalar_type(),
          .device = tensor.device()};
}

std::string TensorMetadata::words() const {
  return text("[", join(std::vector<std::int64_t>(sizes.begin(), sizes.end()), ", "), "] ",
              c10::toString(dtype), " on ", device_name(device));
}

std::optional<at::Device> current_accelerator() {
  if (virtual_devices_installed())
    return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice();
  if (at::hasCUDA()) return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
  return std::nullopt;
}

bool same_value(const at::Tensor& a, const at::Tensor& b) {
  return !a.is_cuda() && a.sizes() == b.sizes() && a.dtype() == b.dtype() && at::equal(a, b);
}

// Also serves a backward inside of the function, on the graph of this very run.
class Recomputation::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Recomputation> run) : run_(std::move(run)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    run_->add(tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  std::shared_ptr<Recomputation> run_;
  at::Tensor tensor_;
};

Recomputation::Recomputation(std::vector<SavedTensor> expected, const Options& options)
    : expected_(std::move(expected)), options_(options), results_(expected_.size()) {}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recomputation::hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

void Recomputation::check(std::size_t slot, const at::Tensor& tensor) const {
  const SavedTensor& expected = expected_[slot];
  const TensorMetadata metadata = TensorMetadata::of(tensor);
  if (metadata != expected.metadata)
    throw StateError(
        text("tensor ", slot, " that a checkpointed function saves is ", metadata.words(),
             " in its recomputation, but was ", expected.metadata.words(), " in its forward"),
        {.hint = hint});
  if (const auto difference = expected.values.difference(ValueSample(tensor)))
    throw StateError(
        text("tensor ", slot, " that a checkpointed function saves, ", metadata.words(),
             ", has other values in its recomputation: ", *difference, " in its forward"),
        {.hint = hint});
}

void Recomputation::add(const at::Tensor& tensor) {
  const std::size_t slot = saved_++;
  if (slot < expected_.size()) {
    check(slot, tensor);
    results_[slot] = tensor;
  }
  if (options_.early_stop) {
    if (saved_ >= expected_.size()) throw StopEarly();  // again, if the function caught it
  } else if (slot >= expected_.size() && !options_.may_save_more) {
    throw StateError(
        text("a checkpointed function saves more tensors in its recomputation than the ",
             expected_.size(), " of its forward: tensor ", slot, " is ",
             TensorMetadata::of(tensor).words()),
        {.hint = hint});
  }
}

void Recomputation::call(const RecomputeFunction& function, std::vector<at::Tensor> inputs) {
  try {
    const KeeperScope scope(*this);
    function(std::move(inputs));
  } catch (const StopEarly&) {  // all tensors are there
  }
  if (saved_ >= expected_.size()) return;
  throw StateError(
      text("a checkpointed function saves ", saved_, " tensors in its recomputation, but saved ",
           expected_.size(), " in its forward: tensor ", saved_, ", ",
           expected_[saved_].metadata.words(), ", is missing"),
      {.hint = hint});
}

void Recomputation::separate_from(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& result : results_) {
    const bool shared = std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
      return result.defined() && result.has_storage() && result.is_alias_of(tensor);
    });
    if (shared) result = result.clone();
  }
}

}  // namespace trestle::recompute
