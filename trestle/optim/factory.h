#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

// Creates optimizers by name, for recipes and for the trainer, which gives each stage its own. Any
// torch::optim optimizer over a model's parameters works as well.
namespace trestle::optim {

// Names and defaults are those of Python's torch.optim. An optimizer reads only its own options.
struct OptimizerOptions {
  std::string name = "sgd";  // one of optimizer_names()
  double learning_rate = 1e-3;
  double weight_decay = 0;  // added to the gradient; decoupled for adamw
  double momentum = 0;      // sgd, rmsprop
  bool nesterov = false;    // sgd
  double alpha = 0.99;      // rmsprop: decay of the average of squares
  bool centered = false;    // rmsprop
  double beta1 = 0.9;       // adam, adamw
  double beta2 = 0.999;     // adam, adamw
  double epsilon = 1e-8;    // adam, adamw, rmsprop
  bool amsgrad = false;     // adam, adamw
};

// Throws UsageError for an unknown name, with the nearest one, for numbers out of range, and for a
// switch (nesterov, centered, amsgrad) that the optimizer does not have.
void check_options(const OptimizerOptions& options);

// Creates an optimizer over these parameters, in this order. Throws UsageError as check_options()
// does, and for an empty list.
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
