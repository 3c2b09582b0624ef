#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "trestle/device/named_tensors.h"

// An optimizer's state as tensors by name. A resumed run then has the same bits, and a checkpoint
// does not depend on which stage owned which parameter.
namespace trestle::optim {

// The name in `named` of each parameter that the optimizer holds, in the optimizer's order. Throws
// UsageError for a parameter that is not in `named`.
std::vector<std::string> names_in(const torch::optim::Optimizer& optimizer,
                                  const NamedTensors& named);

// "<parameter>.<field>" for every parameter that has been stepped: "in.conv1.weight.square_avg".
// The fields have Python's names: sgd momentum_buffer; adam, adamw step, exp_avg, exp_avg_sq,
// max_exp_avg_sq; rmsprop step, square_avg, momentum_buffer, grad_avg. A step is an int64 scalar.
//
// `names` holds the parameters' names in the unsplit model, in the optimizer's order. The tensors
// are the optimizer's own, on their devices, not copies. Throws UsageError if the numbers of names
// and parameters differ, or for an optimizer that is none of make_optimizer's.
NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                             const std::vector<std::string>& names);

// Replaces the optimizer's state by copies on the parameters' devices. Entries of parameters that
// are not in `names` are ignored, because they belong to other optimizers. Throws UsageError as
// above, and FormatError for an unknown field of a known parameter, a missing field, or a shape
// other than the parameter's; the optimizer is then unchanged.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const std::vector<std::string>& names,
                          const NamedTensors& state);

// Moves the optimizer's state to the current devices of its parameters. Call it for an optimizer
// that has stepped before a Pipeline moved or re-cut the model: parameters stay the same tensors,
// but the pipeline does not move the optimizer's own tensors. Throws UsageError as above.
void move_state(torch::optim::Optimizer& optimizer);

}  // namespace trestle::optim
