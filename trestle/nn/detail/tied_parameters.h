#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

// Ties a parameter of one module to that of another. Internal to trestle/nn: use Layers::tie().
namespace trestle::nn {

// Returns the member in which a module keeps a parameter besides its registered name; null for a
// module of another type.
using FindMember = std::function<at::Tensor*(torch::nn::Module&)>;

// The parameter of this name ("weight", or "block.weight" of a submodule). Throws UsageError that
// suggests the nearest name if there is none.
at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name);

// Makes `source` the parameter of this name: both the registered tensor and the member that
// forward() reads. The member is known for torch's layers with a `weight` and a `bias`; otherwise
// `find_member` returns it. Throws UsageError, and leaves the module unchanged, for an unknown
// name, for another shape, and if a reference to the old tensor remains elsewhere.
void replace_parameter(torch::nn::Module& module, const std::string& name, const at::Tensor& source,
                       const FindMember& find_member);

// The same for a parameter that replace_parameter() has set before. The owner still references the
// old tensor, so other references cannot be found.
void replace_again(torch::nn::Module& module, const std::string& name, const at::Tensor& source,
                   const FindMember& find_member);

}  // namespace trestle::nn
