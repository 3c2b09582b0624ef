#include "trestle/pipeline/execute/clip_over_ranks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/optim/gradient_norms.h"

namespace trestle::pipeline {
namespace {

using NormRow = std::array<double, 3>;

// The rows that this rank sends: two with its arguments, and a row {stage, dtype, norm} a gradient.
std::vector<NormRow> own_norm_rows(const StageList& stages, double max_norm,
                                   const optim::ClipGradNormOptions& options) {
  optim::check_clipping(max_norm, options);
  std::vector<NormRow> rows = {{-2, options.p, max_norm},
                               {-1, options.error_if_nonfinite ? 1.0 : 0.0, 0}};
  for (const auto& stage : stages) {
    for (const auto& norm : optim::gradient_norms(stage.parameters(), options.p))
      rows.push_back(
          {static_cast<double>(stage.index()), static_cast<double>(norm.dtype), norm.value});
  }
  return rows;
}

// The rows of all ranks, in the order of their first number.
std::vector<NormRow> gather_norm_rows(const comm::Group& group, const std::vector<NormRow>& own) {
  const at::Tensor mine = at::empty({static_cast<std::int64_t>(own.size()), 3}, at::kDouble);
  std::memcpy(mine.mutable_data_ptr(), own.data(), own.size() * sizeof(NormRow));
  const at::Tensor all = at::cat(group.all_gather_uneven(mine));
  std::vector<NormRow> rows(static_cast<std::size_t>(all.size(0)));
  std::memcpy(rows.data(), all.const_data_ptr(), rows.size() * sizeof(NormRow));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a[0] < b[0]; });
  return rows;
}

// In the order of the stages, so that the total has the same bits as in one process.
std::vector<optim::GradientNorm> gather_norms(const comm::Group& group, const StageList& stages,
                                              double max_norm,
                                              const optim::ClipGradNormOptions& options) {
  const auto own =
      comm::fail_on_error(group, [&] { return own_norm_rows(stages, max_norm, options); });
  const auto rows = gather_norm_rows(group, own);
  const auto ranks = static_cast<std::size_t>(group.size());
  for (std::size_t i = 0; i < 2 * ranks; ++i) {
    if (rows[i] != rows[i < ranks ? 0 : ranks])
      throw UsageError(
          "the ranks of a pipeline clip or measure its gradients in different ways",
          {.rank = group.rank(), .hint = "Give all ranks the same maximum, p and options."});
  }
  std::vector<optim::GradientNorm> norms;
  for (std::size_t i = 2 * ranks; i < rows.size(); ++i)
    norms.push_back(
        {.value = rows[i][2], .dtype = static_cast<at::ScalarType>(static_cast<int>(rows[i][1]))});
  return norms;
}

}  // namespace

double clip_grad_norm(const comm::Group& group, const StageList& stages, double max_norm,
                      const optim::ClipGradNormOptions& options) {
  const auto norms = gather_norms(group, stages, max_norm, options);
  std::vector<at::Tensor> parameters;
  for (const auto& stage : stages) {
    for (auto& parameter : stage.parameters()) parameters.push_back(std::move(parameter));
  }
  return optim::clip_by(parameters, norms, max_norm, options);
}

double grad_norm(const comm::Group& group, const StageList& stages, double p) {
  return optim::total_norm(gather_norms(group, stages, 0, {.p = p}), p);
}

}  // namespace trestle::pipeline
