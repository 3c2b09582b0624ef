#include "trestle/optim/gradient_norms.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::optim {

namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (gradient.layout() != at::kStrided) {
      throw UsageError(text("the gradient of parameter ", i, ", [", join(gradient.sizes(), ", "),
                            "], is sparse: its norm cannot be computed"),
                       {.hint = "Clip dense gradients only: torch::nn::Embedding has an option "
                                "'sparse'."});
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

at::Tensor norm_of(const at::Tensor& values, double p) {
  return std::isinf(p) ? values.abs().max() : values.norm(p);
}

// The norm of all gradients together, in their common type or in double.
at::Tensor total_of(const std::vector<GradientNorm>& norms, double p) {
  bool one_type = true;
  std::vector<double> values;
  for (const auto& norm : norms) {
    one_type = one_type && norm.dtype == norms[0].dtype;
    values.push_back(norm.value);
  }
  const at::Tensor all =
      at::tensor(values, at::kDouble).to(one_type ? norms[0].dtype : at::kDouble);
  return all.numel() == 1 ? all[0] : norm_of(all, p);
}

}  // namespace

void check_clipping(double max_norm, const ClipGradNormOptions& options) {
  if (!(max_norm >= 0)) {
    throw UsageError(text("gradients cannot be clipped to a norm of ", max_norm),
                     {.hint = "max_norm must be at least 0."});
  }
  if (!(options.p > 0)) {
    throw UsageError(text("gradients cannot be clipped by a ", options.p, "-norm"),
                     {.hint = "p must be above 0, or infinity; usually it is 2."});
  }
}

std::vector<GradientNorm> gradient_norms(const std::vector<at::Tensor>& parameters, double p) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  std::map<std::string, std::vector<std::size_t>> on_device;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    on_device[gradients[i].device().str()].push_back(i);
  std::vector<GradientNorm> norms(gradients.size());
  for (const auto& [device, indices] : on_device) {
    std::vector<at::Tensor> here;
    for (const std::size_t i : indices) {
      norms[i].dtype = gradients[i].scalar_type();
      here.push_back(norm_of(gradients[i], p).to(at::kDouble));
    }
    const at::Tensor moved = at::stack(here).cpu();
    for (std::size_t k = 0; k < indices.size(); ++k)
      norms[indices[k]].value = moved[k].item<double>();
  }
  return norms;
}

double grad_norm(const std::vector<at::Tensor>& parameters, double p) {
  check_clipping(0, {.p = p});
  return total_norm(gradient_norms(parameters, p), p);
}

double total_norm(const std::vector<GradientNorm>& norms, double p) {
  return norms.empty() ? 0 : total_of(norms, p).item<double>();
}

double clip_by(const std::vector<at::Tensor>& parameters, const std::vector<GradientNorm>& norms,
               double max_norm, const ClipGradNormOptions& options) {
  if (norms.empty()) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor total = total_of(norms, options.p);
  const double norm = total.item<double>();
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    throw StateError(text("the norm of the gradients is ", norm, ": they cannot be clipped"),
                     {.hint = "Lower the learning rate, or look for the layer that overflows."});
  }
  // As in torch, in the norm's own precision. A number instead of a tensor, for gradients on
  // several devices.
  const double factor = at::clamp(max_norm / (total + 1e-6), {}, 1.0).item<double>();
  for (at::Tensor gradient : gradients_of(parameters)) gradient.mul_(factor);
  return norm;
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      const ClipGradNormOptions& options) {
  check_clipping(max_norm, options);
  return clip_by(parameters, gradient_norms(parameters, options.p), max_norm, options);
}

}  // namespace trestle::optim
