#pragma once

#include <functional>
#include <memory>

#include "trestle/device/named_tensors.h"

namespace torch::optim {
class Optimizer;
}

namespace trestle {

// Makes the optimizer of one stage for these parameters, which have the names of the unsplit model.
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    int stage, const NamedTensors& parameters)>;

}  // namespace trestle
