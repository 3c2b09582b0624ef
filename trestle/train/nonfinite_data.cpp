#include "trestle/train/nonfinite_data.h"

#include <ATen/Functions.h>

#include <cmath>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

// The examples of a batch that have a value which is infinite or NaN.
std::vector<std::int64_t> nonfinite_rows(const at::Tensor& values) {
  std::vector<std::int64_t> rows;
  if (!values.defined() || !values.is_floating_point() || values.dim() == 0) return rows;
  for (std::int64_t row = 0; row < values.size(0); ++row)
    if (!at::isfinite(values[row]).all().item<bool>()) rows.push_back(row);
  return rows;
}

// The same for what this rank has read.
std::string nonfinite_data_here(const data::Batch& batch) {
  constexpr std::size_t most_names = 5;
  for (const auto& [values, what] :
       {std::pair(&batch.inputs, "inputs"), std::pair(&batch.targets, "targets")}) {
    const std::vector<std::int64_t> rows = nonfinite_rows(*values);
    if (rows.empty()) continue;
    std::vector<std::string> names;
    for (const std::int64_t row : rows)
      if (row < std::ssize(batch.names) && names.size() < most_names)
        names.push_back(batch.names[static_cast<std::size_t>(row)]);
    return text("the ", what, " of the data have values that are infinite or NaN",
                names.empty() ? "" : ", in the examples " + join(names, ", "));
  }
  return "";
}

std::string nonfinite_weight_here(const Pipeline& pipeline) {
  for (const auto& [name, tensor] : weights_of(pipeline))
    if (tensor.is_floating_point() && !at::isfinite(tensor).all().item<bool>())
      return text("'", name, "' of the model has values that are infinite or NaN");
  return "";
}

std::string first_of_ranks(const std::string& mine, const RunRanks& ranks) {
  for (std::string& found : ranks.gather(mine))
    if (!found.empty()) return std::move(found);
  return "";
}

}  // namespace

std::string nonfinite_data(const data::Batch& batch, const RunRanks& ranks) {
  return first_of_ranks(nonfinite_data_here(batch), ranks);
}

void refuse_nonfinite_validation(double loss, const data::Batch& batch, const RunRanks& ranks,
                                 const Pipeline& pipeline, parallel::StageReplicas* replicas) {
  if (std::isfinite(loss)) return;
  const std::string what =
      text("the validation loss became ", std::isnan(loss) ? "nan" : text(loss), ": ");
  if (const std::string found = nonfinite_data(batch, ranks); !found.empty())
    throw Error(what + found, {.hint = hint_for_nonfinite_data});
  const auto whole = replicas ? replicas->whole() : std::vector<ShardedParameters::Unsharded>();
  const std::string weight = first_of_ranks(nonfinite_weight_here(pipeline), ranks);
  if (!weight.empty())
    throw Error(what + weight, {.hint = "Lower learning_rate in [optimizer]. Checkpoints saved "
                                        "before this epoch are intact."});
  throw Error(what + "the data and the weights are finite, the model's output or the loss is not",
              {.hint = "The numbers may have become too large: lower learning_rate in [optimizer], "
                       "or use a 'precision' in [train] with a larger range."});
}

}  // namespace trestle::train
