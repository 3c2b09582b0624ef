#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trestle::sharding {

// Where tensors lie in one flat buffer, one behind the other, and which part of each falls into which of several equal
// pieces of it. Numbers of elements alone. Each tensor begins at a multiple of 16 elements, and the end is padded until
// the pieces are equal, so that collectives need no copies; a piece may hold nothing but padding.
class FlatLayout {
 public:
  // Tensors of these numbers of elements, over `pieces` pieces.
  FlatLayout(std::vector<std::int64_t> counts, int pieces);

  std::size_t tensors() const { return counts_.size(); }
  int pieces() const { return pieces_; }
  std::int64_t size() const { return piece_size_ * pieces_; }  // with padding
  std::int64_t piece_size() const { return piece_size_; }
  std::int64_t count(std::size_t tensor) const { return counts_[tensor]; }
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // What of a tensor lies in a piece: elements [begin, begin + count) of it, at `offset` in the piece. A count of 0
  // where nothing does.
  struct Part {
    std::int64_t begin = 0, count = 0, offset = 0;
  };
  Part part(std::size_t tensor, int piece) const;

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
  int pieces_;
  std::int64_t piece_size_ = 0;
};

}  // namespace trestle::sharding
