#include "trestle/gradient_norm/stage_norms.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "trestle/comm/purpose.h"

namespace trestle::gradient_norm {

std::vector<optim::GradientNorm> in_stage_order(std::vector<StageNorm> stage_norms) {
  std::stable_sort(stage_norms.begin(), stage_norms.end(),
                   [](const StageNorm& a, const StageNorm& b) { return a.stage < b.stage; });
  std::vector<optim::GradientNorm> norms;
  for (const StageNorm& one : stage_norms) norms.push_back(one.norm);
  return norms;
}

std::vector<StageNorm> gather_stage_norms(const comm::Group& group,
                                          const std::vector<StageNorm>& own) {
  using Row = std::array<double, 3>;
  std::vector<Row> rows;
  for (const StageNorm& one : own)
    rows.push_back(
        {static_cast<double>(one.stage), static_cast<double>(one.norm.dtype), one.norm.value});
  const at::Tensor mine = at::empty({static_cast<std::int64_t>(rows.size()), 3}, at::kDouble);
  if (!rows.empty()) std::memcpy(mine.mutable_data_ptr(), rows.data(), rows.size() * sizeof(Row));
  const at::Tensor all = at::cat(
      comm::with_purpose([] { return "while the ranks gathered the norms of their gradients"; },
                         [&] { return group.all_gather_uneven(mine); }));
  rows.resize(static_cast<std::size_t>(all.size(0)));
  if (!rows.empty()) std::memcpy(rows.data(), all.const_data_ptr(), rows.size() * sizeof(Row));
  std::vector<StageNorm> all_norms;
  for (const Row& row : rows)
    all_norms.push_back({.stage = static_cast<int>(row[0]),
                         .norm = {.value = row[2],
                                  .dtype = static_cast<at::ScalarType>(static_cast<int>(row[1]))}});
  return all_norms;
}

}  // namespace trestle::gradient_norm
