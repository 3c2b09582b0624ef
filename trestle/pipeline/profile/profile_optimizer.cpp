#include "trestle/pipeline/profile/profile_optimizer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/named_tensors.h"
#include "trestle/device/stream_event.h"
#include "trestle/nn/detail/autocast_scope.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/pipeline/execute/stage_optimizers.h"

namespace trestle::pipeline {
namespace {

// The first step allocates the optimizer's state and is not counted.
constexpr int optimizer_rounds = 4;

NamedTensors copies_with_gradients(const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  NamedTensors copies;
  for (const auto& [name, parameter] : parameters) {
    at::Tensor copy = parameter.detach().clone();
    if (parameter.requires_grad()) {
      copy.set_requires_grad(true);
      copy.mutable_grad() = at::zeros_like(copy);
    }
    copies.emplace_back(name, std::move(copy));
  }
  return copies;
}

void time_updates(const Stage& stage, const NamedTensors& copies,
                  const StageOptimizerOptions& options, simulate::StageCost& cost) {
  const std::unique_ptr<torch::optim::Optimizer> optimizer = options.make(stage.index(), copies);
  if (!optimizer) return;
  const std::vector<at::Tensor> parameters = without_names(copies);
  const at::NoGradGuard no_grad;
  std::vector<double> norms, steps;
  for (int round = 0; round < optimizer_rounds; ++round) {
    device::synchronize(stage.device());
    const Stopwatch watch;
    const auto own = optim::gradient_norms(parameters, options.clip_p);
    const double norm = watch.seconds();
    if (options.clip_grad_norm > 0)
      optim::clip_by(parameters, own, options.clip_grad_norm, {.p = options.clip_p});
    optimizer->step();
    device::synchronize(stage.device());
    if (round == 0) continue;
    norms.push_back(norm);
    steps.push_back(watch.seconds() - norm);
  }
  cost.norm = median(norms);
  cost.step = median(steps);
}

}  // namespace

void measure_optimizer(const PartitionedModel& model, const Stage& stage,
                       const StageOptimizerOptions& options, simulate::StageCost& cost) {
  if (!options.make) return;
  const nn::AutocastScope no_autocast(nn::AutocastState::off());
  const NamedTensors parameters = named_parameters(stage, model.named_parameters());
  if (parameters.empty()) return;
  try {
    time_updates(stage, copies_with_gradients(parameters), options, cost);
  } catch (const c10::OutOfMemoryError&) {
    cost.norm = cost.step = 0;
  }
}

}  // namespace trestle::pipeline
