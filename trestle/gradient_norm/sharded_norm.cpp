#include "trestle/gradient_norm/sharded_norm.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "trestle/comm/purpose.h"
#include "trestle/optim/gradient_norms.h"

namespace trestle::gradient_norm {

double PowerSum::of(const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> some;  // a rank's shard may be empty
  for (const at::Tensor& parameter : parameters)
    if (parameter.numel() > 0) some.push_back(parameter);
  double whole = 0;
  for (const auto& norm : optim::gradient_norms(some, p)) {
    if (std::isnan(norm.value)) return norm.value;  // std::max would skip it
    whole = std::isinf(p) ? std::max(whole, norm.value) : whole + std::pow(norm.value, p);
  }
  return whole;
}

comm::Reduce PowerSum::reduction() const {
  return std::isinf(p) ? comm::Reduce::Max : comm::Reduce::Sum;
}

double PowerSum::norm(double total) const { return std::isinf(p) ? total : std::pow(total, 1 / p); }

double norm_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double p,
                       const std::vector<at::Tensor>& copies) {
  const PowerSum partial{p};
  double own = partial.of(parameters);
  if (const double copied = partial.of(copies); !std::isfinite(copied)) own += copied;
  const at::Tensor whole = at::zeros({2}, at::kDouble);
  auto* const values = whole.mutable_data_ptr<double>();
  values[std::isnan(own) ? 1 : 0] = std::isnan(own) ? 1 : own;  // one rank's NaN reaches all
  for (const comm::Group& group : groups)
    if (group.valid())
      comm::with_purpose([] { return "while the ranks added up the norm of the gradients"; },
                         [&] { group.all_reduce(whole, partial.reduction()).wait(); });
  return values[1] > 0 ? std::nan("") : partial.norm(values[0]);
}

double clip_over_ranks(const std::vector<at::Tensor>& parameters,
                       const std::vector<comm::Group>& groups, double max_norm,
                       const optim::ClipGradNormOptions& options) {
  optim::check_clipping(max_norm, options);
  const double norm = norm_over_ranks(parameters, groups, options.p);
  return optim::clip_by(parameters, {{.value = norm, .dtype = at::kDouble}}, max_norm, options);
}

}  // namespace trestle::gradient_norm
