#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trestle::recompute {

// autograd's counter of changes to a tensor's memory, without the tensor.
struct Version {
  c10::VariableVersion counter = {};
  std::uint32_t number = 0;

  static Version of(const at::Tensor& tensor);  // None and inference tensors have none
  void note() {
    if (counter.enabled()) number = counter.current_version();
  }
  bool has_changed() const { return counter.enabled() && counter.current_version() != number; }
};

struct Leaf {
  const void* tensor = nullptr;  // identity of the tensor
  std::string words;             // for messages
  Version version;
};

// The leaf tensors, mostly parameters, of the graph of `outputs`. The search follows only nodes
// that this thread created since its `first_node` (at::sequence_number), and stops at `inputs`.
std::vector<Leaf> leaves_of(const std::vector<at::Tensor>& outputs, std::uint64_t first_node,
                            const std::vector<at::Tensor>& inputs);

}  // namespace trestle::recompute
