#include "trestle/sharding/flat/flat_layout.h"

#include <algorithm>

namespace trestle::sharding {
namespace {

constexpr std::int64_t alignment = 16;  // elements: 64 bytes of float32, a cache line

std::int64_t aligned_count(std::int64_t count) {
  return (count + alignment - 1) / alignment * alignment;
}

}  // namespace

FlatLayout::FlatLayout(std::vector<std::int64_t> counts, int shards)
    : counts_(std::move(counts)), shards_(shards) {
  std::int64_t end = 0;
  for (const std::int64_t count : counts_) {
    offsets_.push_back(end);
    end += aligned_count(count);
  }
  shard_size_ = aligned_count((end + shards - 1) / shards);
}

FlatLayout::Slice FlatLayout::slice(std::size_t tensor, int shard) const {
  const std::int64_t first = shard * shard_size_, last = first + shard_size_;
  const std::int64_t begin = std::max(offsets_[tensor], first);
  const std::int64_t end = std::min(offsets_[tensor] + counts_[tensor], last);
  if (end <= begin) return {};
  return {.begin = begin - offsets_[tensor], .count = end - begin, .offset = begin - first};
}

}  // namespace trestle::sharding
