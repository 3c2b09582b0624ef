#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/graph.h"
#include "trestle/sharding/options/options.h"

namespace torch::nn {
class Module;
}

namespace trestle::sharding {

// Applies ShardPrecision to a model: which parameters keep their own dtype, and the casts of inputs
// and outputs.
class MixedPrecision {
 public:
  // Throws UsageError for dtypes that cannot compute.
  explicit MixedPrecision(const ShardPrecision& options);

  const ShardPrecision& options() const { return options_; }
  // Finds the parameters of a module, whose name in the model is `name`, that keep their dtype.
  void add_module(const torch::nn::Module& module, const std::string& name);
  bool keeps_dtype(const at::Tensor& parameter) const;
  // Throws UsageError for a name in `keep` that no parameter's layer has.
  void check_names(const NamedTensors& parameters) const;

  // An input and an output of the model's forward.
  at::Tensor cast_input(const at::Tensor& input) const;
  at::Tensor cast_output(const at::Tensor& output) const;
  // If some layers keep their dtype: wraps the graph's layers so that each casts its inputs. Called
  // after the parameters are cast. The model itself stays unchanged.
  void cast_inputs_of_layers(nn::Graph& graph) const;

 private:
  ShardPrecision options_;
  std::set<const void*> kept_;
};

}  // namespace trestle::sharding
