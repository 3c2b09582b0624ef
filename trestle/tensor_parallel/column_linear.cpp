#include "trestle/tensor_parallel/column_linear.h"

#include <cmath>
#include <ostream>
#include <utility>

#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/own_slice.h"

namespace trestle::tensor_parallel {

namespace {

nn::ParameterSlice rows_of_weight(const ColumnLinearImpl& layer) {
  return own_slice(layer.ranks, {layer.outputs, layer.inputs}, 0, layer.options.parts, "outputs");
}

nn::ParameterSlice rows_of_bias(const nn::ParameterSlice& weight) {
  return {.whole = {weight.whole[0]}, .dimension = 0, .ranges = weight.ranges};
}

}  // namespace

ColumnLinearImpl::ColumnLinearImpl(TensorRanks given, std::int64_t in, std::int64_t out,
                                   SplitLinearOptions chosen)
    : ranks(std::move(given)), inputs(in), outputs(out), options(std::move(chosen)) {
  const nn::ParameterSlice own = rows_of_weight(*this);
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  const auto draw = [&](const char* name, const nn::ParameterSlice& slice) {
    return register_parameter(
        name, draw_uniform_slice(ranks, options.seed, name, slice, bound).to(options.type));
  };
  weight = draw("weight", own);
  if (options.bias) bias = draw("bias", rows_of_bias(own));
}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& x,
                                     const std::optional<TokenShards>& shards) {
  const std::optional<TokenShards>& used = shards ? shards : options.shards;
  // A shard of the tokens is not whole, so there is nothing to check.
  if (used) return column_product(ranks, x, weight, bias, used);
  const Replicated whole = in_layer(ranks, [&] { return Replicated(x); });
  return column_product(ranks, whole.tensor, weight, bias);
}

nn::ParameterSlices ColumnLinearImpl::parameter_slices() const {
  if (ranks.alone()) return {};
  nn::ParameterSlices slices = {{"weight", rows_of_weight(*this)}};
  if (bias.defined()) slices["bias"] = rows_of_bias(slices["weight"]);
  return slices;
}

void ColumnLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "trestle::tensor_parallel::ColumnLinear(inputs=" << inputs
         << ", outputs=" << words_of_share(weight.size(0), outputs)
         << ", bias=" << (bias.defined() ? "true" : "false") << ")";
}

}  // namespace trestle::tensor_parallel
