#include "trestle/recompute/second_run.h"

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

// Leaves the function from inside of an operator. autograd's engine, where that operator belongs to a
// backward inside of the function, lets nothing pass but what is a std::exception.
struct StopEarly : std::exception {
  const char* what() const noexcept override {
    return "a function that runs again has done enough";
  }
};

constexpr const char* hint =
    "It must do the same both times. Random numbers that it draws from a generator of its own, "
    "values that "
    "it changes outside, and the time are not restored.";

}  // namespace

Looks Looks::of(const at::Tensor& tensor) {
  return {.sizes = c10::DimVector(tensor.sizes()),
          .dtype = tensor.scalar_type(),
          .device = tensor.device()};
}

std::string Looks::words() const {
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

// Also for who runs a backward inside of the function, on the graph of this very run.
class SecondRun::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<SecondRun> run) : run_(std::move(run)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    run_->add(tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  std::shared_ptr<SecondRun> run_;
  at::Tensor tensor_;
};

SecondRun::SecondRun(std::vector<Looks> expected, const Options& options)
    : expected_(std::move(expected)), options_(options), results_(expected_.size()) {}

std::unique_ptr<torch::autograd::SavedVariableHooks> SecondRun::hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

void SecondRun::add(const at::Tensor& tensor) {
  const std::size_t place = saved_++;
  if (place < expected_.size()) {
    const Looks looks = Looks::of(tensor);
    if (looks != expected_[place]) {
      throw StateError(
          text("tensor ", place, " that a checkpointed function saves is ", looks.words(),
               " when it runs again, and was ", expected_[place].words(), " at first"),
          {.hint = hint});
    }
    results_[place] = tensor;
  }
  if (options_.early_stop) {
    if (saved_ >= expected_.size()) throw StopEarly();  // again, where the function has caught it
  } else if (place >= expected_.size() && !options_.may_go_on) {
    throw StateError(
        text("a checkpointed function saves more tensors when it runs again, and saved ",
             expected_.size(), " at first: tensor ", place, " is ", Looks::of(tensor).words()),
        {.hint = hint});
  }
}

void SecondRun::call(const RunAgain& function, std::vector<at::Tensor> inputs) {
  try {
    const KeeperScope scope(*this);
    function(std::move(inputs));
  } catch (const StopEarly&) {  // has all
  }
  if (saved_ >= expected_.size()) return;
  throw StateError(
      text("a checkpointed function saves ", saved_, " tensors when it runs again, and saved ",
           expected_.size(), " at first: tensor ", saved_, ", ", expected_[saved_].words(),
           ", is missing"),
      {.hint = hint});
}

void SecondRun::separate_from(const std::vector<at::Tensor>& tensors) {
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
