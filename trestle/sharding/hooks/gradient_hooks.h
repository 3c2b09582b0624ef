#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/node.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trestle::sharding {

// Calls a function in a backward whenever a parameter's gradient was added to its grad(). The hooks
// are removed with the object. A parameter has at most one.
class GradientHooks {
 public:
  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks() { clear(); }

  void add(const at::Tensor& parameter, std::function<void()> call);
  void clear();
  // Whether any GradientHooks object watches this parameter.
  static bool watched(const at::Tensor& parameter);
  // Whether autograd still uses the parameter of the i-th add(). A parameter that is moved or cast
  // gets a new gradient accumulator, without the hook.
  bool attached(std::size_t i, const at::Tensor& parameter) const;

  // The use of the parameters' gradients in the running backward.
  enum class Use : std::uint8_t {
    Accumulates,  // backward()
    Returns,      // autograd::grad() of some of them
    None,         // autograd::grad() of other tensors
  };
  Use use_in_this_backward() const;

 private:
  struct Entry {
    // Held, because a parameter holds its own weakly.
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    std::uintptr_t hook = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace trestle::sharding
