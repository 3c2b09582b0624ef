#include "trestle/checkpoint/rank_slices.h"

#include <string>

#include "trestle/checkpoint/box_read.h"
#include "trestle/checkpoint/checkpoint_folder.h"

namespace trestle::checkpoint {

const nn::ParameterSlice* find_slice(const nn::ParameterSlices& slices, std::string_view name) {
  auto found = slices.find(std::string(name));
  if (found == slices.end() && name.rfind('.') != std::string_view::npos)
    found = slices.find(std::string(name.substr(0, name.rfind('.'))));
  return found == slices.end() ? nullptr : &found->second;
}

std::vector<SlicedBox> in_whole_tensor(const Box& own, const nn::ParameterSlice& slice) {
  const auto along = static_cast<std::size_t>(slice.dimension);
  std::vector<SlicedBox> boxes;
  std::int64_t first = 0;  // of the range, in the slice
  for (const nn::IndexRange& range : slice.ranges) {
    Box all{Sizes(own.offset.size(), 0), slice.shape()};
    all.offset[along] = first;
    all.sizes[along] = range.size;
    if (const auto part = intersection(own, all)) {
      Box whole = *part;
      whole.offset[along] += range.begin - first;
      boxes.push_back({std::move(whole), *part});
    }
    first += range.size;
  }
  return boxes;
}

namespace {

void add_boxes(const TensorShard& shard, const nn::ParameterSlice& slice,
               std::vector<TensorShard>* to) {
  const Box own{shard.offset.empty() ? Sizes(slice.whole.size(), 0) : shard.offset,
                shard.tensor.sizes().vec()};
  for (const SlicedBox& box : in_whole_tensor(own, slice))
    to->push_back({shard.name, box_view(shard.tensor.detach(), own.offset, box.own),
                   box.whole.offset, slice.whole});
}

}  // namespace

TensorGroups in_whole_tensors(const TensorGroups& own, const RankSlices& slices) {
  if (!slices.any()) return own;
  TensorGroups all;
  for (const auto& [group, shards] : own) {
    auto& to = all[group];
    for (const TensorShard& shard : shards) {
      const nn::ParameterSlice* const slice = find_slice(slices.parameters, shard.name);
      const auto shape = shard.shape.empty() ? shard.tensor.sizes().vec() : shard.shape;
      if (slice != nullptr && shape == slice->shape())
        add_boxes(shard, *slice, &to);
      else if (slices.writes_whole_tensors)
        to.push_back(shard);
    }
  }
  return all;
}

}  // namespace trestle::checkpoint
