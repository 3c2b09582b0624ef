#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "trestle/recompute/recomputed_nodes.h"

// A backward in two halves, for schedules with I and W (Qi et al. 2023, "Zero Bubble Pipeline
// Parallelism", arXiv:2401.10241).
namespace trestle::pipeline {

// The gradients that enter a graph, each with its edge.
struct GradientRoots {
  std::vector<torch::autograd::Edge> edges = {};
  std::vector<at::Tensor> gradients = {};

  void add(torch::autograd::Edge edge, at::Tensor gradient) {
    edges.push_back(std::move(edge));
    gradients.push_back(std::move(gradient));
  }
};

// The part of a backward that I leaves for W: the operators that still have to compute weight
// gradients, and the weight gradients that I computed together with the input gradients.
class WeightGradients {
 public:
  WeightGradients() = default;
  explicit WeightGradients(GradientRoots roots) : roots_(std::move(roots)) {}

  // Accumulates the gradients of the parameters, once; any thread may call it.
  void accumulate();

 private:
  GradientRoots roots_;
};

struct SplitBackward {
  std::vector<at::Tensor> input_gradients;  // [input]; None = the outputs do not depend on it
  WeightGradients weights;
  // autograd's numbers of the operators with weights whose backward cannot be cut.
  std::vector<std::uint64_t> whole;
};

// I: computes the gradients of `inputs` from those of the outputs. I touches no parameter, and
// calls no hook of a parameter. Only the returned `weights` can use the graph again; I frees
// everything that W does not need before it returns. I and W together compute what one backward
// computes, in the same order of operators.
//
// An operator that I and W share runs in both, and computes only what is asked in each. It runs as
// a whole in I, and its weight gradients wait for W,
// - if all its weights have at most one dimension, as those of norms: to compute both gradients
//   costs what one costs, and W keeps less;
// - if it is one of `recomputed`: W would recompute its function once more;
// - if it is not an operator of libtorch or of trestle: another function may compute all its
//   gradients whenever it runs.
SplitBackward backward_to_inputs(const GradientRoots& outputs,
                                 const std::vector<torch::autograd::Edge>& inputs,
                                 const std::vector<recompute::NodeRange>& recomputed = {});

}  // namespace trestle::pipeline
