#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trestle/checkpoint/files/box.h"

// What a piece of a tensor's memory is as boxes: ranks that divide flat buffers have such pieces. No torch in
// here. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// The dimensions of a tensor without gaps from the one whose neighbours lie farthest apart in memory to the
// one whose lie side by side: 0, 1, 2, 3 for rows, 0, 2, 3, 1 for channels_last. Nothing where the tensor has gaps
// or elements that share memory.
std::optional<Sizes> memory_order(const Sizes& shape, const Sizes& strides);

// Elements [begin, begin + count) of a tensor, counted in the order in which it lies in memory. The boxes
// stand in that order, too: the first one's elements are the first ones of the range. At most 2 n - 1 of them
// for n dimensions, 1 for none; none where the range is empty.
std::vector<Box> boxes_of_range(const Sizes& shape, const Sizes& order, std::int64_t begin,
                                std::int64_t count);

}  // namespace trestle::checkpoint
