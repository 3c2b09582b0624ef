#include "trestle/pipeline/boundary.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace trestle::pipeline {
namespace {

struct BoundaryBackward : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
  std::string name() const override { return "StageBoundaryBackward"; }
};

}  // namespace

at::Tensor behind_boundary(const at::Tensor& leaf) {
  auto node = c10::make_intrusive<BoundaryBackward>();
  node->set_next_edges({torch::autograd::impl::gradient_edge(leaf)});
  at::Tensor inside = leaf.detach();
  torch::autograd::create_gradient_edge(inside, std::move(node));
  return inside;
}

}  // namespace trestle::pipeline
