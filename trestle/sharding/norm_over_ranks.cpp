#include "trestle/sharding/norm_over_ranks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trestle/optim/gradient_norms.h"

namespace trestle::sharding {

double PartialNorm::of(const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> some;  // a rank may have nothing of a parameter
  for (const at::Tensor& parameter : parameters)
    if (parameter.numel() > 0) some.push_back(parameter);
  double whole = 0;
  for (const auto& norm : optim::gradient_norms(some, p)) {
    // A maximum would pass over NaN.
    if (std::isinf(p) && std::isnan(norm.value)) return std::numeric_limits<double>::infinity();
    whole = std::isinf(p) ? std::max(whole, norm.value) : whole + std::pow(norm.value, p);
  }
  return whole;
}

comm::Reduce PartialNorm::reduction() const {
  return std::isinf(p) ? comm::Reduce::Max : comm::Reduce::Sum;
}

double PartialNorm::norm(double whole) const {
  return std::isinf(p) ? whole : std::pow(whole, 1 / p);
}

double clip_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double max_norm,
                       const optim::ClipGradNormOptions& options) {
  optim::check_clipping(max_norm, options);
  const PartialNorm partial{options.p};
  const at::Tensor whole = at::full({1}, partial.of(parameters), at::kDouble);
  for (const comm::Group& group : groups)
    if (group.valid()) group.all_reduce(whole, partial.reduction()).wait();
  return optim::clip_by(parameters,
                        {{.value = partial.norm(whole.item<double>()), .dtype = at::kDouble}},
                        max_norm, options);
}

}  // namespace trestle::sharding
