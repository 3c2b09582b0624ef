#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "trestle/models/transformer/config.h"
#include "trestle/nn/parameter_slice.h"

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

// A slice of a parameter on the CPU: element i of the whole one, counted in the order of a
// contiguous tensor, is `deviation` times number i of CounterRandom(drawn.seed, "<module>.<name>").
at::Tensor draw_normal(const Drawn& drawn, const std::string& name, const nn::ParameterSlice& slice,
                       double deviation);

// The same for uniform numbers from -bound to bound.
at::Tensor draw_uniform(const Drawn& drawn, const std::string& name,
                        const nn::ParameterSlice& slice, double bound);

// Some rows of a table of the vocabulary [table_rows(config), config.width]: normal with the
// config's deviation, and zeros in the padded rows.
at::Tensor draw_table(const Drawn& drawn, const std::string& name, const TransformerConfig& config,
                      const nn::IndexRange& rows);

}  // namespace trestle::models
