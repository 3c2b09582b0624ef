#pragma once

#include <torch/csrc/autograd/function.h>

// Which nodes of autograd's graph change how a tensor lies on the ranks. Inside of
// tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

enum class NodeLayout {
  None,        // the node keeps its inputs' layout
  Branched,    // its output is Branched (operators.h)
  Replicated,  // its output is Replicated
  Other,       // its output is Sharded or Partial
};

NodeLayout layout_of(const torch::autograd::Node& node);
NodeLayout layout_of_product(const torch::autograd::Node& node);  // column_ and row_product()
NodeLayout layout_of_loss(const torch::autograd::Node& node);     // vocabulary_cross_entropy()

}  // namespace trestle::tensor_parallel
