#include "trestle/nn/keyed_dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

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

// Which numbers are kept.
void draw(const LayerRun::ElementKey& key, double p, const ElementNumbers& numbers,
          at::Tensor& kept) {
  const CounterRandom random(key.seed);
  const std::int64_t row = kept.numel() / kept.size(0);
  auto* const values = kept.mutable_data_ptr<bool>();
  constexpr std::int64_t least_per_thread = 4096;
  at::parallel_for(0, kept.numel(), least_per_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto example = static_cast<std::uint64_t>(key.example + i / row);
      const auto element = static_cast<std::uint64_t>(numbers.of(i % row));
      values[i] = random.uniform((example << bits_of_elements) + element) >= p;
    }
  });
}

// 1 / (1 - p), rounded to a type.
double factor_of(double p, at::ScalarType type) {
  const double exact = p < 1 ? 1 / (1 - p) : 0;
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "dropout", [&] {
    return static_cast<double>(static_cast<scalar_t>(exact));
  });
}

at::Tensor times(const at::Tensor& x, const at::Tensor& kept, double factor) {
  return x * kept.to(x.scalar_type()).mul_(factor);
}

// Autograd's own product would keep a factor of x's type for each number. This one keeps a byte.
struct KeptProduct : torch::autograd::Function<KeptProduct> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& kept,
                            double factor) {
    context->save_for_backward({kept});
    context->saved_data["factor"] = factor;
    return times(x, kept, factor);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor kept = context->get_saved_variables()[0];
    return {times(gradients[0], kept, context->saved_data["factor"].toDouble()), {}, {}};
  }
};

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
  at::Tensor drawn = at::empty(x.sizes(), x.options().dtype(at::kBool).device(at::kCPU));
  draw(*key, p, ElementNumbers(x, slice), drawn);
  const at::Tensor kept = drawn.to(x.device());
  const double factor = factor_of(p, x.scalar_type());
  const bool keeps = at::GradMode::is_enabled() && x.requires_grad() && !x._fw_grad(0).defined();
  return keeps ? KeptProduct::apply(x, kept, factor) : times(x, kept, factor);
}

}  // namespace trestle::nn
