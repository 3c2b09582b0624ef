#include "trestle/sharding/flat_layout.h"

#include <algorithm>

namespace trestle::sharding {
namespace {

constexpr std::int64_t alignment = 16;  // elements: 64 bytes of float32, a cache line

std::int64_t aligned(std::int64_t count) { return (count + alignment - 1) / alignment * alignment; }

}  // namespace

FlatLayout::FlatLayout(std::vector<std::int64_t> counts, int pieces)
    : counts_(std::move(counts)), pieces_(pieces) {
  std::int64_t end = 0;
  for (const std::int64_t count : counts_) {
    offsets_.push_back(end);
    end += aligned(count);
  }
  piece_size_ = aligned((end + pieces - 1) / pieces);
}

FlatLayout::Part FlatLayout::part(std::size_t tensor, int piece) const {
  const std::int64_t first = piece * piece_size_, last = first + piece_size_;
  const std::int64_t begin = std::max(offsets_[tensor], first);
  const std::int64_t end = std::min(offsets_[tensor] + counts_[tensor], last);
  if (end <= begin) return {};
  return {.begin = begin - offsets_[tensor], .count = end - begin, .offset = begin - first};
}

}  // namespace trestle::sharding
