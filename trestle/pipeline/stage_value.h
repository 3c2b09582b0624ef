#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "trestle/nn/graph.h"

namespace trestle::pipeline {

// A tensor that enters or leaves a stage.
struct StageValue {
  at::Tensor value;                           // detached; None where nothing flows
  bool wants_gradient = false;                // does its producer want a gradient back?
  std::optional<nn::SharedWith> shared = {};  // if anybody, no layer may write to it
  bool owned = false;  // nobody but the stage that it entered holds its memory
};

}  // namespace trestle::pipeline
