#include "trestle/nn/keyed_dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>

#include "trestle/base/counter_random.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/run_key.h"

namespace trestle::nn {
namespace {

// An example has room for 2^40 numbers.
constexpr int bits_of_elements = 40;

template <class Number>
void draw(const LayerRun::ElementKey& key, double p, std::int64_t first_element,
          at::Tensor& factors) {
  const CounterRandom random(key.seed);
  const std::int64_t row = factors.numel() / factors.size(0);
  const auto kept = static_cast<Number>(p < 1 ? 1 / (1 - p) : 0);
  auto* const values = factors.mutable_data_ptr<Number>();
  constexpr std::int64_t least_per_thread = 4096;
  at::parallel_for(0, factors.numel(), least_per_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto example = static_cast<std::uint64_t>(key.example + i / row);
      const auto element = static_cast<std::uint64_t>(first_element + i % row);
      const bool drop = random.uniform((example << bits_of_elements) + element) < p;
      values[i] = drop ? Number(0) : kept;
    }
  });
}

}  // namespace

at::Tensor keyed_dropout(const at::Tensor& x, double p, bool training, std::int64_t first_element) {
  if (!(p >= 0 && p <= 1)) throw UsageError(text("dropout of ", p, " is outside of 0 to 1"));
  if (x.dim() == 0)
    throw UsageError("dropout takes a tensor whose dimension 0 is the examples; got a scalar");
  if (!training || p == 0 || x.numel() == 0) return x;
  const auto key = LayerRun::next_element_key();
  if (!key) return at::dropout(x, p, true);
  // Drawn on the CPU for all devices, so that they have the same numbers.
  at::Tensor factors = at::empty(x.sizes(), x.options().device(at::kCPU));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout",
                                  [&] { draw<scalar_t>(*key, p, first_element, factors); });
  return x * factors.to(x.device());
}

}  // namespace trestle::nn
