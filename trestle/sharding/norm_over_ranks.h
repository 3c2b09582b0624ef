#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/optim/clip_grad_norm.h"

// The norm of gradients whose parts lie on several ranks.
namespace trestle::sharding {

// The p-norm in three steps: what a rank has of it, how the ranks' parts are put together, and the norm from the whole.
struct PartialNorm {
  double p = 2;

  double of(const std::vector<at::Tensor>& parameters) const;  // sum of |g|^p, or the largest |g|
  comm::Reduce reduction() const;
  double norm(double whole) const;
};

// Scales the gradients of `parameters`, this rank's, by the norm of those of all ranks of the groups, one small reduction a
// group; returns that norm, the same on all of them. As optim::clip_grad_norm() otherwise.
double clip_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double max_norm,
                       const optim::ClipGradNormOptions& options);

}  // namespace trestle::sharding
