#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Parts of tensors: a box is so many elements from such a place on, in every dimension. No torch in
// here. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

using Sizes = std::vector<std::int64_t>;

struct Box {
  Sizes offset;
  Sizes sizes;

  std::int64_t end(std::size_t dimension) const { return offset[dimension] + sizes[dimension]; }
  friend bool operator==(const Box&, const Box&) = default;
};

// All of a tensor of this shape.
Box whole_box(const Sizes& shape);

// 1 for no sizes. The caller knows that it fits: a file's shapes are checked when they are read.
std::int64_t elements_of(const Sizes& sizes);

// As many dimensions as the shape, nothing negative, and nothing beyond its end.
bool lies_in(const Box& box, const Sizes& shape);

// What two boxes of one tensor have in common; nothing where that is no element.
std::optional<Box> intersection(const Box& a, const Box& b);

// "[0:4, 8:16]", as Python would slice; "[]" of a scalar.
std::string to_string(const Box& box);

// Which of the stored boxes a wanted one is made of, and which part of it each has.
struct BoxPiece {
  std::size_t stored = 0;
  Box box;  // in the coordinates of the whole tensor

  friend bool operator==(const BoxPiece&, const BoxPiece&) = default;
};
std::vector<BoxPiece> pieces_of(const Box& wanted, const std::vector<Box>& stored);

// Why boxes, each of which lies in the shape, do not hold every element of it exactly once.
struct CoverFault {
  enum class Kind : std::uint8_t {
    Hole,     // nobody has `box`
    Overlap,  // boxes number `first` and `second` both have `box`
    Ragged    // they are cut in a way that nobody cuts a tensor: too much work to say
  };
  Kind kind = Kind::Hole;
  Box box = {};
  std::size_t first = 0, second = 0;
};
// Nothing where they do. A tensor without elements needs one box at least. Takes about n log n steps
// for n boxes that lie in rows, columns or blocks, and never more than 1,000 n.
std::optional<CoverFault> find_cover_fault(const Sizes& shape, const std::vector<Box>& boxes);

}  // namespace trestle::checkpoint
