#include "trestle/nn/draw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace trestle::nn {

namespace {

template <class Number>
at::Tensor draw_by_index(const ParameterSlice& slice, const Number& number) {
  at::Tensor tensor = at::empty(slice.shape(), at::kFloat);
  const auto dimension = static_cast<std::size_t>(slice.dimension);
  std::int64_t inner = 1;
  for (std::size_t d = dimension + 1; d < slice.whole.size(); ++d) inner *= slice.whole[d];
  std::vector<std::int64_t> index_in_whole;
  for (const IndexRange& range : slice.ranges)
    for (std::int64_t i = 0; i < range.size; ++i) index_in_whole.push_back(range.begin + i);
  const std::int64_t own = slice.size(), whole = slice.whole[dimension];
  auto* const values = tensor.mutable_data_ptr<float>();
  constexpr std::int64_t least_per_thread = 4096;
  at::parallel_for(0, tensor.numel(), least_per_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t line = i / inner;
      const std::int64_t index = index_in_whole[static_cast<std::size_t>(line % own)];
      const std::int64_t flat = (line / own * whole + index) * inner + i % inner;
      values[i] = static_cast<float>(number(static_cast<std::uint64_t>(flat)));
    }
  });
  return tensor;
}

}  // namespace

at::Tensor draw_normal(const CounterRandom& random, const ParameterSlice& slice, double deviation) {
  return draw_by_index(slice, [&](std::uint64_t i) { return deviation * random.normal(i); });
}

at::Tensor draw_uniform(const CounterRandom& random, const ParameterSlice& slice, double bound) {
  return draw_by_index(slice, [&](std::uint64_t i) { return bound * (2 * random.uniform(i) - 1); });
}

ParameterSlice whole_parameter(std::vector<std::int64_t> sizes) {
  const std::int64_t first = sizes.at(0);
  return {.whole = std::move(sizes), .dimension = 0, .ranges = {{0, first}}};
}

}  // namespace trestle::nn
