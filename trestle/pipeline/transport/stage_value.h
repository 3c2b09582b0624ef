#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "trestle/nn/graph.h"

namespace trestle::pipeline {

// A tensor that enters or leaves a stage.
struct StageValue {
  at::Tensor value;             // detached; may be None
  bool wants_gradient = false;  // whether its producer needs a gradient
  std::optional<nn::SharedWith> shared =
      {};              // what shares its memory: then no layer may write to it
  bool owned = false;  // whether only the stage that it entered holds its memory
};

}  // namespace trestle::pipeline
