#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/optim/clip_grad_norm.h"

// The p-norm of gradients that are sharded over ranks: each rank holds some elements of each
// gradient. Sums of powers are reduced.
namespace trestle::gradient_norm {

// The p-norm in three steps: the sum of this rank, its reduction over ranks, and the norm of the
// total.
struct PowerSum {
  double p = 2;

  double of(const std::vector<at::Tensor>& parameters) const;  // sum of |g|^p, or the largest |g|
  comm::Reduce reduction() const;
  double norm(double total) const;
};

// The p-norm of the gradients of `parameters` on this rank and on all ranks of the groups. Costs
// one small reduction for each group. All ranks get the same value, and NaN if one rank has a NaN.
// A group that is not valid() stands for this rank alone. The gradients of `copies` are counted on
// another rank: here they add nothing, but an infinity or a NaN in them makes the norm infinite or
// NaN.
double norm_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double p = 2,
                       const std::vector<at::Tensor>& copies = {});

// Clips the gradients of `parameters` on this rank by norm_over_ranks(), and returns that norm.
// Otherwise as optim::clip_grad_norm().
double clip_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double max_norm,
                       const optim::ClipGradNormOptions& options);

}  // namespace trestle::gradient_norm
