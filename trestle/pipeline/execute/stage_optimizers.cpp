#include "trestle/pipeline/execute/stage_optimizers.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/named_tensors.h"
#include "trestle/nn/detail/autocast_scope.h"

namespace trestle::pipeline {
namespace {

void clear(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

// fp16 ends at 65504: a scaled gradient, and its norm, would overflow.
void refuse_fp16(const std::vector<at::Tensor>& parameters, int stage) {
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined() && parameter.grad().scalar_type() == at::kHalf)
      throw UsageError(text("a gradient of stage ", stage, " in fp16 cannot be unscaled"),
                       {.hint = "Keep the parameters in fp32 and let autocast do the casting."});
}

// As GradientScaler::unscale(), and as Python: the reciprocal in double precision, then rounded.
void divide_gradients(const std::vector<at::Tensor>& parameters, double scale) {
  const double inverse = static_cast<float>(1.0 / scale);
  for (const at::Tensor& parameter : parameters) {
    at::Tensor gradient = parameter.grad();
    if (gradient.defined()) gradient.mul_(inverse);
  }
}

std::vector<optim::GradientNorm> unscaled(std::vector<optim::GradientNorm> norms, double scale) {
  for (auto& norm : norms) norm.value /= scale;
  return norms;
}

bool has_trained(const NamedTensors& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& one) { return one.second.requires_grad(); });
}

}  // namespace

NamedTensors named_parameters(const Stage& stage, const NamedTensors& all) {
  NamedTensors own;
  const auto parameters = stage.parameters();
  for (const auto& one : all)
    for (const auto& parameter : parameters)
      if (parameter.is_same(one.second)) {
        own.push_back(one);
        break;
      }
  return own;
}

StageOptimizers::StageOptimizers(const StageList& stages, const NamedTensors& named,
                                 const OptimizerFactory& make, std::shared_ptr<StageHooks> hooks,
                                 gradient_norm::SlicedParameters sliced)
    : hooks_(std::move(hooks)), sliced_(std::move(sliced)) {
  for (const Stage& stage : stages) {
    const NamedTensors stepped =
        hooks_ ? hooks_->parameters(stage.index()) : named_parameters(stage, named);
    Own& own = own_[stage.index()];
    own.model = stage.parameters();
    own.named = stepped;
    own.stepped = without_names(stepped);
    if (stepped.empty()) continue;
    own.optimizer = make(stage.index(), stepped);
    // Hooks give trained parameters alone.
    if (!own.optimizer && (hooks_ || has_trained(stepped)))
      throw UsageError(
          text("PipelineOptions::optimizer gave no optimizer for stage ", stage.index(),
               ", which has ", stepped.size(), " parameters"),
          {.hint = "It is called for stages with parameters alone: make one of them."});
  }
}

torch::optim::Optimizer* StageOptimizers::find(int stage) const {
  return own_.at(stage).optimizer.get();
}

std::vector<gradient_norm::StageNorm> StageOptimizers::norms(const std::vector<int>& stages,
                                                             const StepEnd& end) const {
  const nn::AutocastScope no_autocast(nn::AutocastState::off());
  std::vector<gradient_norm::StageNorm> parts;
  for (const int stage : stages) {
    const auto& own = own_.at(stage);
    if (end.loss_scale != 1) refuse_fp16(own.stepped, stage);
    if (hooks_) continue;
    for (const auto& norm : norms_of(own.named, sliced_, end.p)) parts.push_back({stage, norm});
  }
  if (!hooks_) return parts;
  for (const auto& norm : hooks_->norm(stages, end.p)) parts.push_back({stages.front(), norm});
  return parts;
}

void StageOptimizers::step(int stage, const std::vector<optim::GradientNorm>& all,
                           const StepEnd& end) const {
  const nn::AutocastScope no_autocast(nn::AutocastState::off());
  const Own& own = own_.at(stage);
  const bool finite = std::isfinite(norm_of_step(all, end));
  if (own.optimizer && finite) {
    const at::NoGradGuard no_grad;
    if (end.loss_scale != 1) divide_gradients(own.stepped, end.loss_scale);
    if (end.max_norm > 0)
      optim::clip_by(own.stepped, unscaled(all, end.loss_scale), end.max_norm, {.p = end.p});
    if (hooks_)
      hooks_->step(stage, *own.optimizer);
    else
      own.optimizer->step();
  }
  if (!finite && end.keep_nonfinite) return;
  clear(own.model);
  clear(own.stepped);
}

void StageOptimizers::clear_gradients() const {
  for (const auto& [stage, own] : own_) {
    clear(own.model);
    clear(own.stepped);
  }
}

std::vector<optim::GradientNorm> norms_of(const NamedTensors& parameters,
                                          const gradient_norm::SlicedParameters& sliced, double p) {
  if (!sliced.any()) return optim::gradient_norms(without_names(parameters), p);
  return {
      {.value = gradient_norm::norm_over_slices(parameters, sliced, {}, p), .dtype = at::kDouble}};
}

double norm_of_step(const std::vector<optim::GradientNorm>& all, const StepEnd& end) {
  return optim::total_norm(unscaled(all, end.loss_scale), end.p);
}

}  // namespace trestle::pipeline
