#include "trestle/recompute/graph_leaves.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "trestle/base/text.h"

namespace trestle::recompute {

Version Version::of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference()) return {};
  return {.counter = tensor.unsafeGetTensorImpl()->version_counter(),
          .number = static_cast<std::uint32_t>(tensor._version())};
}

std::vector<Leaf> leaves_of(const std::vector<at::Tensor>& outputs, std::uint64_t first_node,
                            const std::vector<at::Tensor>& inputs) {
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen = {nullptr};
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) seen.insert(input.grad_fn().get());
  }
  std::vector<Node*> open;
  const auto add = [&](Node* node) {
    if (seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad())
      add(torch::autograd::impl::gradient_edge(output).function.get());
  }
  std::vector<Leaf> leaves;
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      leaves.push_back(
          {.tensor = leaf->variable.unsafeGetTensorImpl(),
           .words = text("a parameter of shape [", join(leaf->variable.sizes(), ", "), "]"),
           .version = Version::of(leaf->variable)});
      continue;
    }
    if (node->sequence_nr() < first_node) continue;
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
  return leaves;
}

}  // namespace trestle::recompute
