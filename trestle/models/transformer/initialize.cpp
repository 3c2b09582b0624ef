#include "trestle/models/transformer/initialize.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trestle/nn/draw.h"

namespace trestle::models {

namespace {

CounterRandom random_of(const Drawn& drawn, const std::string& name) {
  return {drawn.seed, drawn.module + "." + name};
}

}  // namespace

at::Tensor draw_normal(const Drawn& drawn, const std::string& name, const nn::ParameterSlice& slice,
                       double deviation) {
  if (drawn.weights == InitialWeights::Unset) return at::empty(slice.shape(), drawn.type);
  return nn::draw_normal(random_of(drawn, name), slice, deviation).to(drawn.type);
}

at::Tensor draw_uniform(const Drawn& drawn, const std::string& name,
                        const nn::ParameterSlice& slice, double bound) {
  if (drawn.weights == InitialWeights::Unset) return at::empty(slice.shape(), drawn.type);
  return nn::draw_uniform(random_of(drawn, name), slice, bound).to(drawn.type);
}

// Element i of a true row is the same with and without padded rows behind it.
at::Tensor draw_table(const Drawn& drawn, const std::string& name, const TransformerConfig& config,
                      const nn::IndexRange& rows) {
  const nn::ParameterSlice slice{
      .whole = {table_rows(config), config.width}, .dimension = 0, .ranges = {rows}};
  at::Tensor table = draw_normal(drawn, name, slice, config.initial_deviation);
  const std::int64_t true_rows =
      std::clamp<std::int64_t>(config.vocabulary - rows.begin, 0, rows.size);
  table.narrow(0, true_rows, rows.size - true_rows).zero_();
  return table;
}

}  // namespace trestle::models
