#include "trestle/sharding/flat/model_checks.h"

#include <ATen/MemoryOverlap.h>

#include <functional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/sharding/hooks/gradient_hooks.h"
#include "trestle/sharding/options/first_difference.h"

namespace trestle::sharding {
namespace {

// One line for each tensor: "parameter 'in.weight'\tis [4, 3] Float".
std::string describe_model(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::string lines;
  const auto add = [&lines](const char* what, const std::string& name, const at::Tensor& tensor) {
    lines += text(what, " '", name, "'\tis ", "[", join(tensor.sizes(), ", "), "] ",
                  toString(tensor.scalar_type()), tensor.requires_grad() ? "" : ", not trained",
                  tensor.is_contiguous() ? "" : text(", strides ", tensor.strides()), "\n");
  };
  for (const auto& [name, tensor] : parameters) add("parameter", name, tensor);
  for (const auto& [name, tensor] : buffers) add("buffer", name, tensor);
  return lines;
}

void check_no_aliases(const NamedTensors& parameters, const NamedTensors& others) {
  for (const auto& [name, tensor] : parameters) {
    for (const auto& [other, second] : others) {
      if (tensor.is_same(second) || !tensor.is_alias_of(second)) continue;
      const auto overlap = at::get_overlap_status(tensor, second);
      if (overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial)
        continue;
      throw UsageError(text("parameter '", name, "' shares its memory with '", other, "'"),
                       {.hint = "Register the same tensor twice, or tie() layers. Above level None "
                                "parameters move to flat buffers, which would separate them."});
    }
  }
}

}  // namespace

void check_can_be_sharded(const NamedTensors& parameters, const NamedTensors& buffers,
                          ShardLevel level) {
  const auto check_tensor = [](const std::string& name, const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided)
      throw UsageError(text("'", name, "' is a sparse tensor"),
                       {.hint = "A sharded model must have dense parameters and buffers."});
    if (tensor.numel() > 0 &&
        !tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get())
      throw UsageError(
          text("'", name, "' was sharded over ranks by a Sharded that is destroyed"),
          {.hint = "Destroy a Sharded while an unshard() lives to continue with the model."});
  };
  for (const auto& [name, tensor] : buffers) check_tensor(name, tensor);
  for (const auto& [name, tensor] : parameters) {
    check_tensor(name, tensor);
    if (GradientHooks::watched(tensor))
      throw UsageError(
          text("parameter '", name, "' is trained by another Sharded already"),
          {.hint = "Use one Sharded for all dimensions of the mesh: HSDP includes data "
                   "parallelism."});
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
      throw UsageError(
          text("parameter '", name, "' overlaps itself: it is an expanded tensor"),
          {.hint = "Register the tensor before it is expanded, and expand it in forward()."});
  }
  if (level == ShardLevel::None) return;
  check_no_aliases(parameters, parameters);
  check_no_aliases(parameters, buffers);
}

void check_same_model(const comm::Group& group, const NamedTensors& parameters,
                      const NamedTensors& buffers) {
  const std::string own = describe_model(parameters, buffers);
  const std::string brief = text(own.size(), " ", std::hash<std::string>()(own));
  const auto difference = [&](const std::string& words) {
    return comm::with_purpose([] { return "while the ranks compared their models"; },
                              [&] { return comm::find_difference(group, words); });
  };
  if (!difference(brief)) return;
  const auto differs = difference(own);  // called by all ranks
  if (!differs) return;
  const int first = group.ranks().at(0);
  const int rank = group.ranks().at(static_cast<std::size_t>(differs->rank));
  throw UsageError(text(first_difference(differs->first, first, differs->other, rank),
                        ": the ranks built different models"),
                   {.rank = rank, .hint = "Build the same model on all ranks."});
}

}  // namespace trestle::sharding
