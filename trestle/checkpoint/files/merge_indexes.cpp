#include <map>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/checkpoint_index.h"

namespace trestle::checkpoint {

namespace {

// A tensor of all ranks, and the rank that saved each of its boxes.
struct Merged {
  IndexedTensor tensor;
  std::vector<std::size_t> ranks;
};

std::string described(const IndexedTensor& tensor) {
  return text(tensor.dtype, " [", join(tensor.shape, ", "), "]");
}

void add(Merged& all, IndexedTensor&& tensor, std::size_t rank) {
  if (tensor.dtype != all.tensor.dtype || tensor.shape != all.tensor.shape)
    throw UsageError(text("'", tensor.name, "' is ", described(all.tensor), " on rank ",
                          all.ranks.empty() ? rank : all.ranks[0], " and ", described(tensor),
                          " on rank ", rank));
  for (StoredBox& box : tensor.boxes) {
    all.tensor.boxes.push_back(std::move(box));
    all.ranks.push_back(rank);
  }
}

void check_cover_of(const std::string& group, const Merged& all) {
  const auto fault = find_cover_fault(all.tensor.shape, all.tensor.plain_boxes());
  if (!fault) return;
  const std::string tensor =
      text("'", all.tensor.name, "' (", described(all.tensor), " of the ", group, ")");
  if (fault->kind == CoverFault::Kind::Hole)
    throw UsageError(text("no rank saved ", to_string(fault->box), " of ", tensor));
  if (fault->kind == CoverFault::Kind::Ragged)
    throw UsageError(text("the ranks' boxes of ", tensor, " are too many and irregular to check"));
  const std::size_t first = all.ranks[fault->first], second = all.ranks[fault->second];
  if (first == second)
    throw UsageError(
        text("rank ", first, " saved ", to_string(fault->box), " of ", tensor, " twice"));
  throw UsageError(text("rank ", first, " and rank ", second, " both saved ", to_string(fault->box),
                        " of ", tensor),
                   {.hint = "Only one of the ranks with the same elements may save them."});
}

}  // namespace

CheckpointIndex merge_indexes(std::vector<CheckpointIndex> indexes) {
  CheckpointIndex index;
  std::map<std::string, std::vector<Merged>> groups;  // in the order of ranks
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  for (std::size_t rank = 0; rank < indexes.size(); ++rank) {
    for (const auto& [file, bytes] : indexes[rank].files)
      if (!index.files.try_emplace(file, bytes).second)
        throw UsageError(text("rank ", rank, " wrote '", file, "', which another rank wrote too"));
    for (auto& [group, tensors] : indexes[rank].groups) {
      std::vector<Merged>& all = groups[group];
      for (IndexedTensor& tensor : tensors) {
        const auto [place, is_new] = places.try_emplace({group, tensor.name}, all.size());
        if (is_new) all.push_back({{tensor.name, tensor.dtype, tensor.shape, {}}, {}});
        add(all[place->second], std::move(tensor), rank);
      }
    }
  }
  for (auto& [group, all] : groups)
    for (Merged& merged : all) {
      check_cover_of(group, merged);
      index.groups[group].push_back(std::move(merged.tensor));
    }
  return index;
}

}  // namespace trestle::checkpoint
