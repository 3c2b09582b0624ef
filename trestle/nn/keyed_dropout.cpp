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

// The numbers of the elements of a row of x within the row of the whole tensor.
class ElementNumbers {
 public:
  ElementNumbers(const at::Tensor& x, const std::optional<DropoutSlice>& slice) {
    if (!slice) return;
    inner_ = 1;
    for (std::int64_t d = slice->dimension + 1; d < x.dim(); ++d) inner_ *= x.size(d);
    own_ = x.size(slice->dimension);
    begin_ = slice->begin;
    whole_ = slice->whole;
  }
  std::int64_t of(std::int64_t i) const {
    if (inner_ == 0) return i;
    const std::int64_t line = i / inner_;
    return (line / own_ * whole_ + begin_ + line % own_) * inner_ + i % inner_;
  }

 private:
  std::int64_t inner_ = 0, own_ = 0, begin_ = 0, whole_ = 0;  // inner_ = 0: x is whole
};

template <class Number>
void draw(const LayerRun::ElementKey& key, double p, const ElementNumbers& numbers,
          at::Tensor& factors) {
  const CounterRandom random(key.seed);
  const std::int64_t row = factors.numel() / factors.size(0);
  const auto kept = static_cast<Number>(p < 1 ? 1 / (1 - p) : 0);
  auto* const values = factors.mutable_data_ptr<Number>();
  constexpr std::int64_t least_per_thread = 4096;
  at::parallel_for(0, factors.numel(), least_per_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto example = static_cast<std::uint64_t>(key.example + i / row);
      const auto element = static_cast<std::uint64_t>(numbers.of(i % row));
      const bool drop = random.uniform((example << bits_of_elements) + element) < p;
      values[i] = drop ? Number(0) : kept;
    }
  });
}

void check_slice(const at::Tensor& x, const DropoutSlice& slice) {
  if (slice.dimension >= 1 && slice.dimension < x.dim() && slice.begin >= 0 &&
      slice.begin + x.size(slice.dimension) <= slice.whole)
    return;
  throw UsageError(text("dropout of a tensor [", join(x.sizes(), ", "), "] that is a slice from ",
                        slice.begin, " of ", slice.whole, " indices of dimension ",
                        slice.dimension));
}

}  // namespace

at::Tensor keyed_dropout(const at::Tensor& x, double p, bool training,
                         const std::optional<DropoutSlice>& slice) {
  if (!(p >= 0 && p <= 1)) throw UsageError(text("dropout of ", p, " is outside of 0 to 1"));
  if (x.dim() == 0)
    throw UsageError("dropout takes a tensor whose dimension 0 is the examples; got a scalar");
  if (slice) check_slice(x, *slice);
  if (!training || p == 0) return x;
  // Drawn for an empty tensor too, because other ranks may hold elements of the same tensor.
  const auto key = LayerRun::next_element_key();
  if (x.numel() == 0) return x;
  if (!key) return at::dropout(x, p, true);
  // Drawn on the CPU for all devices, so that they have the same numbers.
  at::Tensor factors = at::empty(x.sizes(), x.options().device(at::kCPU));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    draw<scalar_t>(*key, p, ElementNumbers(x, slice), factors);
  });
  return x * factors.to(x.device());
}

}  // namespace trestle::nn
