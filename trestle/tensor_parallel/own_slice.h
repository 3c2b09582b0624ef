#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/nn/parameter_slice.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

// The slices of modules that are made for tensor ranks. Inside of tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

// This rank's slice of a weight [whole[0], whole[1]]. The ranks share each of the parts that follow
// each other along `dimension`; no parts are one. Throws UsageError, by the layer's name, for sizes
// that cannot be shared. `what` names the indices: "outputs".
nn::ParameterSlice own_slice(const TensorRanks& ranks, std::vector<std::int64_t> whole,
                             std::int64_t dimension, const std::vector<std::int64_t>& parts,
                             const char* what);

// A parameter's initial values from -bound to bound, keyed by (seed, "<layer>.<name>").
at::Tensor draw_uniform_slice(const TensorRanks& ranks, std::uint64_t seed, const std::string& name,
                              const nn::ParameterSlice& slice, double bound);

// "64", or "16 of 64" on a rank of several.
std::string words_of_share(std::int64_t own, std::int64_t whole);

// Adds the layer's name to errors.
template <class Call>
auto in_layer(const TensorRanks& ranks, const Call& call) {
  try {
    return call();
  } catch (...) {
    rethrow_with_context(text("in the layer '", ranks.layer(), "' on tensor rank ", ranks.rank(),
                              " of ", ranks.size()));
  }
}

}  // namespace trestle::tensor_parallel
