#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/optim/options/optimizer_options.h"

// Optimizers by name, for recipes and for the trainer, which gives each stage its own. Any
// torch::optim optimizer over a model's parameters works as well.
namespace trestle::optim {

// Throws UsageError for an unknown name, with the nearest one, for numbers out of range, and for a
// switch (nesterov, centered, amsgrad) that is not the optimizer's.
void check_options(const OptimizerOptions& options);

// One optimizer over these parameters, in this order. Throws UsageError as
// check_options() does, and for no parameters.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters,
                                                        const OptimizerOptions& options);

// Parameters with a learning rate and a weight decay of their own, as one of torch's groups.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  double rate_factor = 1;                   // of the learning rate of all
  std::optional<double> weight_decay = {};  // nothing: that of all
};

// One optimizer over these groups, in this order. Throws UsageError as above, and for a group
// without parameters.
std::unique_ptr<torch::optim::Optimizer> make_grouped_optimizer(
    const std::vector<ParameterGroup>& groups, const OptimizerOptions& options);

// The names that make_optimizer() knows.
std::vector<std::string> optimizer_names();

// The learning rate of the first group, and of all of them; with `factors`, one for each group, each
// has its multiple.
double learning_rate(const torch::optim::Optimizer& optimizer);
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate,
                       const std::vector<double>& factors = {});

// The momentum of all groups of one of these optimizers: beta1 of adam and adamw. Throws UsageError
// for any other optimizer.
void set_momentum(torch::optim::Optimizer& optimizer, double momentum);

}  // namespace trestle::optim
