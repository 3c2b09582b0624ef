#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "trestle/models/transformer/config.h"

// Initial weights that are drawn by index, so that a rank can draw its slice alone.
namespace trestle::models {

enum class InitialWeights {
  Drawn,
  Unset,  // arbitrary values, for a model whose weights are loaded next
};

// The key of one module's initial weights: the model's seed and the module's name in the unsplit
// model. Each parameter's own name completes the key.
struct Drawn {
  std::uint64_t seed = 0;
  std::string module;
  InitialWeights weights = InitialWeights::Drawn;
  // The parameters' type. A projection (projection.h) may be int8.
  at::ScalarType type = at::kFloat;

  Drawn of(const std::string& name) const { return {seed, module + "." + name, weights, type}; }
};

// A parameter [sizes] on the CPU: element i, counted in the order of a contiguous tensor,
// is `deviation` times number i of CounterRandom(drawn.seed, "<module>.<name>").
at::Tensor draw_normal(const Drawn& drawn, const std::string& name, at::IntArrayRef sizes,
                       double deviation);

// The same for uniform numbers from -bound to bound.
at::Tensor draw_uniform(const Drawn& drawn, const std::string& name, at::IntArrayRef sizes,
                        double bound);

// A table of the vocabulary [table_rows(config), config.width]: normal with the config's deviation,
// and zeros in the padded rows.
at::Tensor draw_table(const Drawn& drawn, const std::string& name, const TransformerConfig& config);

}  // namespace trestle::models
