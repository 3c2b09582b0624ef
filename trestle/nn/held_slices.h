#pragma once

#include "trestle/nn/parameter_slice.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace trestle::nn {

// The places of the slices that a module and its submodules hold (SlicedParameters), under its own
// names. Not installed.
ParameterSlices slices_held_by(const torch::nn::Module& module);

}  // namespace trestle::nn
