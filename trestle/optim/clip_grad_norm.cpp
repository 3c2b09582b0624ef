#include "trestle/optim/clip_grad_norm.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::optim {

namespace {

void check(double max_norm, const ClipGradNormOptions& options) {
  if (!(max_norm >= 0)) {
    throw UsageError(text("gradients cannot be clipped to a norm of ", max_norm),
                     {.hint = "max_norm is at least 0."});
  }
  if (!(options.p > 0)) {
    throw UsageError(text("there is no ", options.p, "-norm to clip gradients by"),
                     {.hint = "p is a number above 0, or infinity; usually 2."});
  }
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (gradient.layout() != at::kStrided) {
      throw UsageError(text("the gradient of parameter ", i, ", [", join(gradient.sizes(), ", "),
                            "], is sparse: its norm is not known"),
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

// Each gradient's own norm, in the order of the parameters, on the CPU: one transfer a device.
at::Tensor norms_of(const std::vector<at::Tensor>& gradients, double p) {
  std::map<std::string, std::vector<std::size_t>> on_device;
  bool one_type = true;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    on_device[gradients[i].device().str()].push_back(i);
    one_type = one_type && gradients[i].dtype() == gradients[0].dtype();
  }
  std::vector<at::Tensor> norms(gradients.size());
  for (const auto& [device, indices] : on_device) {
    std::vector<at::Tensor> here;
    for (const std::size_t i : indices) {
      const at::Tensor norm = norm_of(gradients[i], p);
      here.push_back(one_type ? norm : norm.to(at::kDouble));
    }
    const at::Tensor moved = at::stack(here).cpu();
    for (std::size_t k = 0; k < indices.size(); ++k) norms[indices[k]] = moved[k];
  }
  return at::stack(norms);
}

at::Tensor total_norm(const std::vector<at::Tensor>& gradients, double p) {
  const at::Tensor norms = norms_of(gradients, p);
  return norms.numel() == 1 ? norms[0] : norm_of(norms, p);
}

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters, double p) {
  check(0, {.p = p});
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  return gradients.empty() ? 0 : total_norm(gradients, p).item<double>();
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      const ClipGradNormOptions& options) {
  check(max_norm, options);
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return 0;
  const at::Tensor total = total_norm(gradients, options.p);
  const double norm = total.item<double>();
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    throw StateError(text("the norm of the gradients is ", norm, ": they cannot be clipped"),
                     {.hint = "Lower the learning rate, or look for the layer that overflows."});
  }
  // As torch reckons, in the norm's own precision. On several devices a number, not a tensor.
  const double factor = at::clamp(max_norm / (total + 1e-6), {}, 1.0).item<double>();
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
  return norm;
}

}  // namespace trestle::optim
