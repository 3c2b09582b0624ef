#pragma once

#include <string>

#include "trestle/models/transformer/transformer.h"

namespace trestle::models {

// The facts that determine a model's numbers and the messages of its layers, a line each. Tensor
// ranks compare them. Not installed.
std::string describe(const TransformerConfig& config, const TransformerOptions& options);

}  // namespace trestle::models
