#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trestle::sharding {

// The layout of tensors in one flat buffer, one after the other, and of the equal shards of that
// buffer. All numbers count elements. Each tensor begins at a multiple of 16 elements. The end is
// padded until all shards are equal, so that collectives need no copies. A shard may hold only
// padding.
class FlatLayout {
 public:
  // `counts`: the number of elements of each tensor.
  FlatLayout(std::vector<std::int64_t> counts, int shards);

  std::size_t tensors() const { return counts_.size(); }
  int shards() const { return shards_; }
  std::int64_t size() const { return shard_size_ * shards_; }  // with padding
  std::int64_t shard_size() const { return shard_size_; }
  std::int64_t count(std::size_t tensor) const { return counts_[tensor]; }
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // The elements [begin, begin + count) of a tensor, which lie at `offset` in a shard. count is 0
  // if the shard holds none.
  struct Slice {
    std::int64_t begin = 0, count = 0, offset = 0;
  };
  Slice slice(std::size_t tensor, int shard) const;

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
  int shards_;
  std::int64_t shard_size_ = 0;
};

}  // namespace trestle::sharding
