#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::pipeline {

// The first tensor of a stage's own graph: `leaf`'s values, one autograd node away from it. A layer
// may then change it in place, as it may in the unsplit model, where torch refuses that for a leaf.
// Version counters stay shared, so that a change that would spoil an earlier stage's graph on the
// same device is still reported.
at::Tensor behind_boundary(const at::Tensor& leaf);

}  // namespace trestle::pipeline
