#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/optim/options/optimizer_options.h"

// Creates optimizers by name, for recipes and for the trainer, which gives each stage its own. Any
// torch::optim optimizer over a model's parameters works as well.
namespace trestle::optim {

// Throws UsageError for an unknown name, with the nearest one, for numbers out of range, and for a
// switch (nesterov, centered, amsgrad) that the optimizer does not have.
void check_options(const OptimizerOptions& options);

// Creates an optimizer over these parameters, in this order. Throws UsageError as check_options()
// does. An empty list is legal: a stage may have no parameters.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters,
                                                        const OptimizerOptions& options);

// Parameters with their own learning rate and weight decay, as one of torch's parameter groups.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  double rate_factor = 1;                   // multiplies the learning rate
  std::optional<double> weight_decay = {};  // nothing: the common one
};

// Creates an optimizer over these groups, in this order. Throws UsageError as above, and for a
// group without parameters.
std::unique_ptr<torch::optim::Optimizer> make_grouped_optimizer(
    const std::vector<ParameterGroup>& groups, const OptimizerOptions& options);

// The known optimizers.
std::vector<std::string> optimizer_names();

// Reads the learning rate of the first group, and sets that of all groups. `factors` holds a
// multiplier for each group, or is empty.
double learning_rate(const torch::optim::Optimizer& optimizer);
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate,
                       const std::vector<double>& factors = {});

// Sets the momentum of all groups; for adam and adamw it is beta1. Throws UsageError for an
// optimizer that is none of these.
void set_momentum(torch::optim::Optimizer& optimizer, double momentum);

}  // namespace trestle::optim
