#include "trestle/nn/draw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace trestle::nn {

namespace {

// Elements that follow each other in the slice's tensor and in the whole one.
struct Run {
  std::int64_t own = 0;    // the first one in the slice's tensor
  std::int64_t whole = 0;  // the same in the whole one
};

// In the order of the slice's tensor. A whole parameter is one run.
std::vector<Run> runs_of(const ParameterSlice& slice) {
  const auto dimension = static_cast<std::size_t>(slice.dimension);
  std::int64_t outer = 1, inner = 1, own = 0;
  for (std::size_t d = 0; d < dimension; ++d) outer *= slice.whole[d];
  for (std::size_t d = dimension + 1; d < slice.whole.size(); ++d) inner *= slice.whole[d];
  std::vector<Run> runs;
  for (std::int64_t line = 0; line < outer; ++line)
    for (const IndexRange& range : slice.ranges) {
      if (range.size == 0) continue;
      runs.push_back({own, (line * slice.whole[dimension] + range.begin) * inner});
      own += range.size * inner;
    }
  return runs;
}

template <class Number>
at::Tensor draw_by_index(const ParameterSlice& slice, const Number& number) {
  at::Tensor tensor = at::empty(slice.shape(), at::kFloat);
  const std::vector<Run> runs = runs_of(slice);
  auto* const values = tensor.mutable_data_ptr<float>();
  constexpr std::int64_t least_per_thread = 4096;
  at::parallel_for(0, tensor.numel(), least_per_thread, [&](std::int64_t begin, std::int64_t end) {
    auto run = std::prev(std::ranges::upper_bound(runs, begin, {}, &Run::own));
    for (std::int64_t i = begin; i < end; ++run) {
      const std::int64_t last = std::next(run) == runs.end() ? end : std::next(run)->own;
      for (; i < std::min(last, end); ++i)
        values[i] =
            static_cast<float>(number(static_cast<std::uint64_t>(run->whole + i - run->own)));
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
