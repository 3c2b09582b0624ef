#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "trestle/device/named_tensors.h"

// What an optimizer remembers, as tensors by name, so that a resumed run goes on with the same bits
// and a checkpoint does not depend on which stage owned which parameter.
namespace trestle::optim {

// Under which of these names each parameter stands that the optimizer holds, in its order. Throws UsageError for
// one that is not among them.
std::vector<std::string> names_in(const torch::optim::Optimizer& optimizer,
                                  const NamedTensors& named);

// "<parameter>.<field>" for every parameter that has been stepped: "in.conv1.weight.square_avg".
// The fields have Python's names: sgd momentum_buffer; adam, adamw step, exp_avg, exp_avg_sq,
// max_exp_avg_sq; rmsprop step, square_avg, momentum_buffer, grad_avg. A step is an int64 scalar.
//
// `names` are the parameters' unsplit names in the order in which the optimizer holds them. The
// tensors are the optimizer's own, on their devices: not copies. Throws UsageError if the numbers
// of names and parameters differ or the optimizer is none of make_optimizer's.
NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                             const std::vector<std::string>& names);

// Gives the optimizer that state, copied to the parameters' devices; what it remembered before is
// forgotten. Entries of parameters that are not in `names` are left for other optimizers. Throws
// UsageError as above, and FormatError for an unknown field of a known parameter, a missing field,
// or a shape that is not the parameter's; the optimizer is then unchanged.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const std::vector<std::string>& names,
                          const NamedTensors& state);

// Moves what the optimizer remembers to the devices that its parameters are on now: for an optimizer
// that has stepped before a Pipeline moved the model, or cut it anew. (Parameters stay the same
// tensors, so it goes on working; its own tensors are nobody's to move but its owner's.) Throws
// UsageError as above.
void move_state(torch::optim::Optimizer& optimizer);

}  // namespace trestle::optim
