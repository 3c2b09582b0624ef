#include "trestle/tensor_parallel/row_linear.h"

#include <cmath>
#include <ostream>
#include <utility>

#include "trestle/nn/draw.h"
#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/own_slice.h"

namespace trestle::tensor_parallel {

namespace {

nn::ParameterSlice columns_of(const RowLinearImpl& layer) {
  return own_slice(layer.ranks, {layer.outputs, layer.inputs}, 1, layer.options.parts, "inputs");
}

}  // namespace

RowLinearImpl::RowLinearImpl(TensorRanks given, std::int64_t in, std::int64_t out,
                             SplitLinearOptions chosen)
    : ranks(std::move(given)), inputs(in), outputs(out), options(std::move(chosen)) {
  const nn::ParameterSlice own = columns_of(*this);
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  const auto draw = [&](const char* name, const nn::ParameterSlice& slice) {
    return register_parameter(
        name, draw_uniform_slice(ranks, options.seed, name, slice, bound).to(options.type));
  };
  weight = draw("weight", own);
  if (options.bias) bias = draw("bias", nn::whole_parameter({outputs}));
}

at::Tensor RowLinearImpl::forward(const at::Tensor& x, const std::optional<TokenShards>& shards) {
  const Sharded own = in_layer(ranks, [&] { return Sharded(x, -1, inputs); });
  return row_product(ranks, own.tensor, weight, bias, shards ? shards : options.shards);
}

nn::ParameterSlices RowLinearImpl::parameter_slices() const {
  if (ranks.alone()) return {};
  return {{"weight", columns_of(*this)}};
}

void RowLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "trestle::tensor_parallel::RowLinear(inputs=" << words_of_share(weight.size(1), inputs)
         << ", outputs=" << outputs << ", bias=" << (bias.defined() ? "true" : "false") << ")";
}

}  // namespace trestle::tensor_parallel
