#include "trestle/parallel/tensor_stages.h"

#include <sstream>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"

namespace trestle::parallel {

namespace {

// Equal on ranks that split one model, a line for each parameter.
std::string describe(const Pipeline& pipeline, const nn::ParameterSlices& slices) {
  std::string lines;
  for (const auto& [name, tensor] : pipeline.named_parameters()) {
    const auto found = slices.find(name);
    const auto shape = found == slices.end() ? tensor.sizes().vec() : found->second.whole;
    lines += text(name, " ", c10::toString(tensor.scalar_type()), " [", join(shape, ", "), "]",
                  found == slices.end() ? std::string(" whole")
                                        : text(" split along ", found->second.dimension),
                  tensor.requires_grad() ? "" : " frozen", "\n");
  }
  return lines;
}

std::string line_of(std::istringstream& lines) {
  std::string line;
  return std::getline(lines, line) ? line : "nothing";
}

}  // namespace

TensorOptions tensor_options(const tensor_parallel::TensorRanks& ranks) {
  if (ranks.alone() || !ranks.exist()) return {};
  return {.group = ranks.group(), .alone = [ranks] {
            return std::make_shared<tensor_parallel::TensorRanks::AloneScope>(ranks);
          }};
}

gradient_norm::SlicedParameters agree_on_slices(const Pipeline& pipeline,
                                                const tensor_parallel::TensorRanks& ranks) {
  const nn::ParameterSlices slices = pipeline.parameter_slices();
  const auto difference = comm::find_difference(ranks.group(), describe(pipeline, slices));
  if (difference) {
    std::istringstream first(difference->first), other(difference->other);
    std::string a, b;
    do {
      a = line_of(first);
      b = line_of(other);
    } while (a == b);
    throw UsageError(text("the tensor ranks split different models: '", a, "' on tensor rank 0, '",
                          b, "' on tensor rank ", difference->rank),
                     {.hint = "Give all ranks the same model and the same plan of its split."});
  }
  gradient_norm::SlicedParameters sliced{.group = ranks.group()};
  for (const auto& [name, slice] : slices) sliced.names.insert(name);
  return sliced;
}

}  // namespace trestle::parallel
