#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <functional>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/lazy_module.h"
#include "trestle/nn/value.h"

namespace trestle::nn {

// A torch module, or a function of tensors, and how to call it, with its type erased: a box with
// numbered arguments and outputs. make_layer() (make_layer.h) makes one from any of them.
struct Layer {
  std::string name;   // in the unsplit model: "down1", or "block1.conv" in a nested one
  LazyModule module;  // none for a plain function
  std::function<Values(const Values&)> forward;
  int arguments = 1;           // how many tensors forward() takes
  int required_arguments = 1;  // those behind are std::optional and may be left unconnected
  int outputs = 1;  // how many tensors it returns; -1, a std::vector's, where only a call can tell

  // The module's own, under its own names ("weight"); none for a plain function. A parameter that
  // is tied to another layer's belongs to that layer alone. They make the module where it has not
  // been made.
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> buffers() const;
  // Moves parameters with their gradients, and buffers, in place: each stays the tensor object that
  // it is.
  void to(at::Device device) const;
  // Puts parameters of four dimensions (the weights of 2-d convolutions), with their gradients,
  // into this order in memory, in place, as torch's Module.to(memory_format=...) does.
  // Preserve changes nothing.
  void to(at::MemoryFormat format) const;
};

// "[4, 3, 32, 48] Float, None": how messages show what a layer was given.
std::string describe(const Values& values);

}  // namespace trestle::nn
