#include "trestle/pipeline/execute/clip_over_ranks.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/gradient_norm/stage_norms.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/pipeline/execute/stage_optimizers.h"

namespace trestle::pipeline {
namespace {

// The arguments of the call travel as the norms of stages before the first one, so that one
// collective carries both.
std::vector<gradient_norm::StageNorm> arguments_as_norms(
    double max_norm, const optim::ClipGradNormOptions& options) {
  optim::check_clipping(max_norm, options);
  return {{.stage = -3, .norm = {.value = options.p}},
          {.stage = -2, .norm = {.value = max_norm}},
          {.stage = -1, .norm = {.value = options.error_if_nonfinite ? 1.0 : 0.0}}};
}
constexpr std::size_t argument_count = 3;

std::vector<gradient_norm::StageNorm> own_norms(const StageGradients& gradients, double max_norm,
                                                const optim::ClipGradNormOptions& options) {
  std::vector<gradient_norm::StageNorm> own = arguments_as_norms(max_norm, options);
  for (const auto& stage : gradients.stages)
    for (const auto& norm :
         norms_of(named_parameters(stage, gradients.named), gradients.sliced, options.p))
      own.push_back({stage.index(), norm});
  return own;
}

// The norms of all ranks' gradients.
std::vector<optim::GradientNorm> gather_norms(const comm::Group& group,
                                              const StageGradients& gradients, double max_norm,
                                              const optim::ClipGradNormOptions& options) {
  const auto own =
      comm::fail_on_error(group, [&] { return own_norms(gradients, max_norm, options); });
  auto norms = gradient_norm::in_stage_order(gradient_norm::gather_stage_norms(group, own));
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t arguments = argument_count * ranks;
  for (std::size_t i = 0; i < arguments; ++i) {
    if (norms[i].value != norms[i - i % ranks].value)
      throw UsageError(
          "the ranks of a pipeline clip or measure its gradients in different ways",
          {.rank = group.rank(), .hint = "Give all ranks the same maximum, p and options."});
  }
  norms.erase(norms.begin(), norms.begin() + static_cast<std::ptrdiff_t>(arguments));
  return norms;
}

}  // namespace

double clip_grad_norm(const comm::Group& group, const StageGradients& gradients, double max_norm,
                      const optim::ClipGradNormOptions& options) {
  const auto norms = gather_norms(group, gradients, max_norm, options);
  return optim::clip_by(without_names(gradients.named), norms, max_norm, options);
}

double grad_norm(const comm::Group& group, const StageGradients& gradients, double p) {
  return optim::total_norm(gather_norms(group, gradients, 0, {.p = p}), p);
}

}  // namespace trestle::pipeline
