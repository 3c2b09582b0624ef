#include "trestle/checkpoint/files/range_boxes.h"

#include <algorithm>
#include <numeric>

namespace trestle::checkpoint {

namespace {

// Adds the boxes of elements [begin, end) of a sub-tensor: `at` fixes all dimensions before
// `dimension`.
void add_boxes(const Sizes& shape, std::size_t dimension, const Box& at, std::int64_t begin,
               std::int64_t end, std::vector<Box>& boxes) {
  if (begin == end) return;
  Box box = at;
  if (dimension == shape.size()) {
    boxes.push_back(std::move(box));
    return;
  }
  std::int64_t row = 1;  // elements for each step along this dimension
  for (std::size_t d = dimension + 1; d < shape.size(); ++d) row *= shape[d];
  const auto part_of_row = [&](std::int64_t number, std::int64_t from, std::int64_t to) {
    box.offset[dimension] = number;
    box.sizes[dimension] = 1;
    add_boxes(shape, dimension + 1, box, from - number * row, to - number * row, boxes);
  };
  const std::int64_t first = (begin + row - 1) / row, last = end / row;  // complete rows
  if (first > last) return part_of_row(last, begin, end);
  if (begin < first * row) part_of_row(first - 1, begin, first * row);
  if (first < last) {
    Box rows = at;
    rows.offset[dimension] = first;
    rows.sizes[dimension] = last - first;
    boxes.push_back(std::move(rows));
  }
  if (last * row < end) part_of_row(last, last * row, end);
}

}  // namespace

std::optional<Sizes> memory_order(const Sizes& shape, const Sizes& strides) {
  Sizes order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (elements_of(shape) == 0) return order;
  const auto size = [&](std::int64_t d) { return shape[static_cast<std::size_t>(d)]; };
  // The stride of a dimension of size 1 has no meaning: such dimensions go to the front.
  const auto stride = [&](std::int64_t d) {
    return size(d) == 1 ? INT64_MAX : strides[static_cast<std::size_t>(d)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return stride(a) > stride(b); });
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i > 0 && size(order[i - 1]) != 1; --i) {
    if (stride(order[i - 1]) != expected) return std::nullopt;
    expected *= size(order[i - 1]);
  }
  return order;
}

std::vector<Box> boxes_of_range(const Sizes& shape, const Sizes& order, std::int64_t begin,
                                std::int64_t count) {
  Sizes in_memory;
  for (const std::int64_t d : order) in_memory.push_back(shape[static_cast<std::size_t>(d)]);
  std::vector<Box> boxes;
  add_boxes(in_memory, 0, whole_box(in_memory), begin, begin + count, boxes);
  for (Box& box : boxes) {
    const Box moved = box;
    for (std::size_t i = 0; i < order.size(); ++i) {
      box.offset[static_cast<std::size_t>(order[i])] = moved.offset[i];
      box.sizes[static_cast<std::size_t>(order[i])] = moved.sizes[i];
    }
  }
  return boxes;
}

}  // namespace trestle::checkpoint
