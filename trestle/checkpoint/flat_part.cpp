#include "trestle/checkpoint/flat_part.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/range_boxes.h"

namespace trestle::checkpoint {

std::vector<TensorPart> boxes_of(const FlatPart& part) {
  const auto order = memory_order(part.shape, part.strides);
  if (!order)
    throw UsageError(text("'", part.name, "' of shape [", join(part.shape, ", "), "] and strides [",
                          join(part.strides, ", "),
                          "] is not contiguous in memory: it cannot be sharded"));
  std::vector<std::int64_t> place(order->size());  // position of each dimension in the memory order
  for (std::size_t i = 0; i < order->size(); ++i)
    place[static_cast<std::size_t>((*order)[i])] = static_cast<std::int64_t>(i);
  std::vector<TensorPart> parts;
  std::int64_t done = 0;
  for (const Box& box : boxes_of_range(part.shape, *order, part.begin, part.elements.numel())) {
    std::vector<std::int64_t> sizes;
    for (const std::int64_t d : *order) sizes.push_back(box.sizes[static_cast<std::size_t>(d)]);
    const std::int64_t count = elements_of(box.sizes);
    const at::Tensor rows = part.elements.detach().narrow(0, done, count).view(sizes);
    parts.push_back({part.name, rows.permute(place), box.offset, part.shape});
    done += count;
  }
  return parts;
}

}  // namespace trestle::checkpoint
