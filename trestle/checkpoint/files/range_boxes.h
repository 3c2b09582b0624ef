#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trestle/checkpoint/files/box.h"

// Converts a range of a tensor's memory to boxes, for ranks that shard flat buffers. Torch-free.
// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// The dimensions of a tensor without gaps, sorted from the largest stride to the smallest: 0, 1, 2,
// 3 for contiguous tensors, 0, 2, 3, 1 for channels_last. Nothing if the tensor has gaps or
// elements that share memory.
std::optional<Sizes> memory_order(const Sizes& shape, const Sizes& strides);

// The boxes of elements [begin, begin + count) of a tensor, counted in memory order. The boxes are
// in that order too: the first box has the first elements of the range. There are at most 2 n - 1
// of them for n dimensions, 1 for a scalar; none for an empty range.
std::vector<Box> boxes_of_range(const Sizes& shape, const Sizes& order, std::int64_t begin,
                                std::int64_t count);

}  // namespace trestle::checkpoint
