#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <functional>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/lazy_module.h"
#include "trestle/nn/parameter_slice.h"
#include "trestle/nn/value.h"

namespace trestle::nn {

// A torch module, or a function of tensors, with its type erased: numbered arguments and outputs.
// make_layer() (make_layer.h) creates one from either.
struct Layer {
  std::string name;   // in the unsplit model: "down1", or "block1.conv" in a nested one
  LazyModule module;  // none for a plain function
  std::function<Values(const Values&)> forward;
  int arguments = 1;           // number of tensors that forward() takes
  int required_arguments = 1;  // the rest are std::optional and may be left unconnected
  int outputs = 1;  // number of tensors it returns; -1 for a std::vector, known by the call

  // The module's own, under its own names ("weight"); none for a plain function. A parameter tied
  // to another layer's is listed only there. Creates the module if necessary.
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> buffers() const;
  // The places of the parameters and buffers of which this rank holds a slice, under the module's
  // own names.
  // Creates the module if necessary.
  ParameterSlices parameter_slices() const;
  // Moves parameters with their gradients, and buffers, in place: each remains the same tensor
  // object.
  void to(at::Device device) const;
  // Converts parameters of four dimensions (the weights of 2-d convolutions) and their gradients to
  // this memory format in place, as torch's Module.to(memory_format=...). Preserve changes nothing.
  void to(at::MemoryFormat format) const;
};

// The arguments of a layer for messages: "[4, 3, 32, 48] Float, None".
std::string describe(const Values& values);

}  // namespace trestle::nn
