#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/parameter_slice.h"
#include "trestle/tensor_parallel/split_plan.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

// One module that a plan may split. Inside of tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

enum class ModuleKind : std::uint8_t {
  Product,
  Convolution,
  Lookup,
  BatchNorm,
  GroupNorm,
  LayerNorm,
  Other
};

struct ModuleFacts {
  ModuleKind kind = ModuleKind::Other;
  std::string type;          // "Linear"
  bool has_weights = false;  // parameters or buffers of its own, or it needs all features
  std::int64_t outputs = 0, inputs = 0, groups = 1;
  std::int64_t output_dimension = 0, input_dimension = 1;  // of the weight
  std::int64_t element_bytes = 4;
  std::string odd;  // why an Embedding cannot be split at all: "max_norm"
  // A module that was made for tensor ranks splits itself (column_linear.h): as this rule would.
  std::optional<SplitRule> own_rule;
};

ModuleFacts facts_of(const torch::nn::Module& module);

// The faults of a rule for such a module.
std::vector<std::string> faults_of(const ModuleFacts& facts, const SplitRule& rule, int ranks);

// Both take a rule without faults.
SplitLayer describe(const torch::nn::Module& module, const SplitRule& rule,
                    const TensorRanks& ranks);
// Replaces the module's tensors by this rank's slices, and gives its weight a kernel. A tensor that
// is a slice already, because another module has it too, stays. Returns the places.
nn::ParameterSlices split_module(torch::nn::Module& module, const SplitRule& rule,
                                 const TensorRanks& ranks);
// The places alone.
nn::ParameterSlices places_in(const torch::nn::Module& module, const SplitRule& rule,
                              const TensorRanks& ranks);

}  // namespace trestle::tensor_parallel
