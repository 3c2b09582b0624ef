#include "trestle/tensor_parallel/own_slice.h"

#include <numeric>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/nn/draw.h"

namespace trestle::tensor_parallel {

namespace {

void check_sizes(const TensorRanks& ranks, const std::vector<std::int64_t>& whole,
                 const std::vector<std::int64_t>& parts, std::int64_t divided, const char* what) {
  if (ranks.layer().empty())
    throw UsageError("a layer of tensor ranks needs its name in the model",
                     {.hint = "Give it the ranks with the name: ranks.of(\"mlp.up\"). Initial "
                              "values and messages depend on it."});
  for (const std::int64_t size : whole)
    if (size < 1)
      throw UsageError(text("'", ranks.layer(), "' has the sizes ", join(whole, " and "),
                            "; they must be 1 or more"));
  const std::int64_t sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (sum != divided)
    throw UsageError(text("'", ranks.layer(), "' has ", divided, " ", what, ", but the parts {",
                          join(parts, ", "), "} have ", sum));
  for (const std::int64_t part : parts)
    if (part < ranks.size())
      throw UsageError(text("'", ranks.layer(), "' has ", part, " ", what, ", which ", ranks.size(),
                            " tensor ranks cannot share: each of them needs one"));
}

}  // namespace

nn::ParameterSlice own_slice(const TensorRanks& ranks, std::vector<std::int64_t> whole,
                             std::int64_t dimension, const std::vector<std::int64_t>& parts,
                             const char* what) {
  const std::int64_t divided = whole.at(static_cast<std::size_t>(dimension));
  const std::vector<std::int64_t> all = parts.empty() ? std::vector{divided} : parts;
  check_sizes(ranks, whole, all, divided, what);
  nn::ParameterSlice slice{.whole = std::move(whole), .dimension = dimension, .ranges = {}};
  std::int64_t begin = 0;
  for (const std::int64_t part : all) {
    const nn::IndexRange own = ranks.own(part);
    slice.ranges.push_back({begin + own.begin, own.size});
    begin += part;
  }
  return slice;
}

at::Tensor draw_uniform_slice(const TensorRanks& ranks, std::uint64_t seed, const std::string& name,
                              const nn::ParameterSlice& slice, double bound) {
  return nn::draw_uniform(CounterRandom(seed, ranks.layer() + "." + name), slice, bound);
}

std::string words_of_share(std::int64_t own, std::int64_t whole) {
  return own == whole ? text(whole) : text(own, " of ", whole);
}

}  // namespace trestle::tensor_parallel
