#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/node.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trestle::sharding {

// Calls back in a backward whenever a parameter's gradient has been added to its grad(). The hooks
// go with the object. A parameter has one of them at a time.
class GradientHooks {
 public:
  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks() { clear(); }

  void add(const at::Tensor& parameter, std::function<void()> call);
  void clear();
  // Whether there are hooks on this parameter, of whatever object.
  static bool watched(const at::Tensor& parameter);
  // Whether the parameter that add() got as number i is still the same to autograd: moving or
  // casting it makes it another.
  bool attached(std::size_t i, const at::Tensor& parameter) const;

  // What the backward that is running does with the parameters' gradients.
  enum class Use : std::uint8_t {
    Accumulates,  // backward()
    Returns,      // autograd::grad() of some of them
    None,         // autograd::grad() of other tensors
  };
  Use use_in_this_backward() const;

 private:
  struct Entry {
    c10::intrusive_ptr<torch::autograd::Node>
        accumulator;  // kept: a parameter holds its own weakly
    std::uintptr_t hook = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace trestle::sharding
