#include "trestle/models/transformer/initialize.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "trestle/base/counter_random.h"

namespace trestle::models {

namespace {

template <class Number>
at::Tensor draw(const Drawn& drawn, const std::string& name, at::IntArrayRef sizes,
                const Number& number) {
  if (drawn.weights == InitialWeights::Unset) return at::empty(sizes, drawn.type);
  at::Tensor tensor = at::empty(sizes, at::kFloat);
  const CounterRandom random(drawn.seed, drawn.module + "." + name);
  auto* const values = tensor.mutable_data_ptr<float>();
  constexpr std::int64_t least_per_thread = 4096;
  at::parallel_for(0, tensor.numel(), least_per_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      values[i] = static_cast<float>(number(random, static_cast<std::uint64_t>(i)));
  });
  return tensor.to(drawn.type);
}

}  // namespace

at::Tensor draw_normal(const Drawn& drawn, const std::string& name, at::IntArrayRef sizes,
                       double deviation) {
  return draw(drawn, name, sizes, [deviation](const CounterRandom& random, std::uint64_t i) {
    return deviation * random.normal(i);
  });
}

at::Tensor draw_uniform(const Drawn& drawn, const std::string& name, at::IntArrayRef sizes,
                        double bound) {
  return draw(drawn, name, sizes, [bound](const CounterRandom& random, std::uint64_t i) {
    return bound * (2 * random.uniform(i) - 1);
  });
}

// Element i of a true row is the same with and without padded rows behind it.
at::Tensor draw_table(const Drawn& drawn, const std::string& name,
                      const TransformerConfig& config) {
  const std::int64_t rows = table_rows(config);
  at::Tensor table = draw_normal(drawn, name, {rows, config.width}, config.initial_deviation);
  table.narrow(0, config.vocabulary, rows - config.vocabulary).zero_();
  return table;
}

}  // namespace trestle::models
