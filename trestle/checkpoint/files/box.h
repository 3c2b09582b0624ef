#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Boxes: ranges of a tensor's elements, given by an offset and a size in each dimension.
// Torch-free. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

using Sizes = std::vector<std::int64_t>;

struct Box {
  Sizes offset;
  Sizes sizes;

  std::int64_t end(std::size_t dimension) const { return offset[dimension] + sizes[dimension]; }
  friend bool operator==(const Box&, const Box&) = default;
};

// The box of a whole tensor of this shape.
Box whole_box(const Sizes& shape);

// 1 for a scalar. The product must not overflow: a file's shapes are checked when they are read.
std::int64_t elements_of(const Sizes& sizes);

// Whether the box has the shape's number of dimensions, no negative number, and ends within the
// shape.
bool lies_in(const Box& box, const Sizes& shape);

// The common elements of two boxes of one tensor; nothing if there are none.
std::optional<Box> intersection(const Box& a, const Box& b);

// "[0:4, 8:16]", as a Python slice; "[]" for a scalar.
std::string to_string(const Box& box);

// The intersection of a wanted box with one of the stored boxes.
struct BoxOverlap {
  std::size_t stored = 0;
  Box box;  // in the coordinates of the whole tensor

  friend bool operator==(const BoxOverlap&, const BoxOverlap&) = default;
};
std::vector<BoxOverlap> overlaps_of(const Box& wanted, const std::vector<Box>& stored);

// Why these boxes, each within the shape, do not contain every element exactly once.
struct CoverFault {
  enum class Kind : std::uint8_t {
    Hole,     // no box contains `box`
    Overlap,  // boxes number `first` and `second` both contain `box`
    Ragged    // the boxes are cut in such an unusual way that the check would take too long
  };
  Kind kind = Kind::Hole;
  Box box = {};
  std::size_t first = 0, second = 0;
};
// Nothing if they do. A tensor without elements needs at least one box. Takes about n log n steps
// for n boxes in rows, columns or blocks, and never more than 1,000 n.
std::optional<CoverFault> find_cover_fault(const Sizes& shape, const std::vector<Box>& boxes);

}  // namespace trestle::checkpoint
