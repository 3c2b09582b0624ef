#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

// One tensor as the parameter of two modules. Internal to trestle/nn: use Layers::tie().
namespace trestle::nn {

// The member in which a module keeps a parameter beside its registered name; null where the module
// is of another type.
using FindMember = std::function<at::Tensor*(torch::nn::Module&)>;

// The parameter of this name ("weight", or "block.weight" of a submodule). Throws UsageError, with
// the nearest name, where there is none.
at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name);

// Makes `source` the parameter of this name: the registered one and the member that forward()
// reads, which is known for torch's layers with a `weight` and a `bias`, and otherwise comes from
// `find_member`. Throws UsageError, and leaves the module as it was, for an unknown name, another
// shape, and where the old tensor is still held by somebody, who would go on using it.
void replace_parameter(torch::nn::Module& module, const std::string& name, const at::Tensor& source,
                       const FindMember& find_member);

}  // namespace trestle::nn
