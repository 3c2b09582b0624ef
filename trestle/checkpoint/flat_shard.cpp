#include "trestle/checkpoint/flat_shard.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/range_boxes.h"

namespace trestle::checkpoint {

std::vector<TensorShard> boxes_of(const FlatShard& shard) {
  const auto order = memory_order(shard.shape, shard.strides);
  if (!order)
    throw UsageError(text("'", shard.name, "' of shape [", join(shard.shape, ", "),
                          "] and strides [", join(shard.strides, ", "),
                          "] is not contiguous in memory: it cannot be sharded"));
  std::vector<std::int64_t> place(order->size());  // position of each dimension in the memory order
  for (std::size_t i = 0; i < order->size(); ++i)
    place[static_cast<std::size_t>((*order)[i])] = static_cast<std::int64_t>(i);
  std::vector<TensorShard> shards;
  std::int64_t done = 0;
  for (const Box& box : boxes_of_range(shard.shape, *order, shard.begin, shard.elements.numel())) {
    std::vector<std::int64_t> sizes;
    for (const std::int64_t d : *order) sizes.push_back(box.sizes[static_cast<std::size_t>(d)]);
    const std::int64_t count = elements_of(box.sizes);
    const at::Tensor rows = shard.elements.detach().narrow(0, done, count).view(sizes);
    shards.push_back({shard.name, rows.permute(place), box.offset, shard.shape});
    done += count;
  }
  return shards;
}

}  // namespace trestle::checkpoint
