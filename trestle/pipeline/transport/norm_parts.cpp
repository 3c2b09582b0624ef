#include "trestle/pipeline/transport/norm_parts.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace trestle::pipeline {

std::vector<optim::GradientNorm> in_order(std::vector<NormPart> parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const NormPart& a, const NormPart& b) { return a.stage < b.stage; });
  std::vector<optim::GradientNorm> norms;
  for (const NormPart& part : parts) norms.push_back(part.norm);
  return norms;
}

std::vector<NormPart> gather_norm_parts(const comm::Group& group,
                                        const std::vector<NormPart>& own) {
  using Row = std::array<double, 3>;
  std::vector<Row> rows;
  for (const NormPart& part : own)
    rows.push_back(
        {static_cast<double>(part.stage), static_cast<double>(part.norm.dtype), part.norm.value});
  const at::Tensor mine = at::empty({static_cast<std::int64_t>(rows.size()), 3}, at::kDouble);
  if (!rows.empty()) std::memcpy(mine.mutable_data_ptr(), rows.data(), rows.size() * sizeof(Row));
  const at::Tensor all = at::cat(group.all_gather_uneven(mine));
  rows.resize(static_cast<std::size_t>(all.size(0)));
  if (!rows.empty()) std::memcpy(rows.data(), all.const_data_ptr(), rows.size() * sizeof(Row));
  std::vector<NormPart> parts;
  for (const Row& row : rows)
    parts.push_back({.stage = static_cast<int>(row[0]),
                     .norm = {.value = row[2],
                              .dtype = static_cast<at::ScalarType>(static_cast<int>(row[1]))}});
  return parts;
}

}  // namespace trestle::pipeline
