#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/optim/clip_grad_norm.h"

// The norm of gradients whose parts lie on several ranks.
namespace trestle::sharding {

// The p-norm in three steps: what a rank has of it, how the ranks' parts are put together, and the
// norm from the whole.
struct PartialNorm {
  double p = 2;

  double of(const std::vector<at::Tensor>& parameters) const;  // sum of |g|^p, or the largest |g|
  comm::Reduce reduction() const;
  double norm(double whole) const;
};

// The p-norm of the gradients of `parameters`, this rank's, with those of all ranks of the groups,
// one small reduction a group; the same on all of them, and NaN where one rank has one. A group
// that is not valid() is this rank alone.
double norm_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double p = 2);

// Scales the gradients of `parameters`, this rank's, by norm_over_ranks(), and returns it. As
// optim::clip_grad_norm() otherwise.
double clip_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double max_norm,
                       const optim::ClipGradNormOptions& options);

}  // namespace trestle::sharding
