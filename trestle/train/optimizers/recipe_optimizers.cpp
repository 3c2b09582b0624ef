#include "trestle/train/optimizers/recipe_optimizers.h"

#include <utility>

#include "trestle/optim/factory.h"
#include "trestle/train/optimizers/parameter_groups.h"
#include "trestle/train/optimizers/run_rate.h"

namespace trestle::train {

optim::OptimizerOptions optimizer_options(const recipe::Recipe& recipe) {
  optim::OptimizerOptions options = recipe.optimizer;
  // The schedule sets the momentum before each step; nesterov needs one from the start.
  if (cycles_momentum(recipe.optimizer) && options.momentum == 0)
    options.momentum = recipe.optimizer.one_cycle_highest_momentum;
  return options;
}

void RecipeOptimizers::set_parameters(const NamedTensors& whole) { whole_ = whole; }

std::unique_ptr<torch::optim::Optimizer> RecipeOptimizers::make(int stage,
                                                                const NamedTensors& parameters) {
  StageGroups trained = groups_of(recipe_, whole_, parameters);
  if (trained.groups.empty()) return nullptr;
  StageOptimizer made{.stage = stage, .names = std::move(trained.names)};
  for (const auto& group : trained.groups) made.rate_factors.push_back(group.rate_factor);
  auto optimizer = optim::make_grouped_optimizer(trained.groups, optimizer_options(recipe_));
  const std::lock_guard lock(mutex_);
  made_[stage] = std::move(made);
  return optimizer;
}

std::vector<StageOptimizer> RecipeOptimizers::of(Pipeline& pipeline) const {
  std::vector<StageOptimizer> optimizers;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    if (!pipeline.has_stage(stage)) continue;
    torch::optim::Optimizer* const optimizer = pipeline.optimizer(stage);
    if (!optimizer) continue;
    optimizers.push_back(made_.at(stage));
    optimizers.back().optimizer = optimizer;
  }
  return optimizers;
}

}  // namespace trestle::train
