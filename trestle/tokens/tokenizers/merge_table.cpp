#include "trestle/tokens/tokenizers/merge_table.h"

#include <bit>

namespace trestle::tokens {

MergeTable::MergeTable(const std::vector<Merge>& merges)
    : entries_(std::bit_ceil(2 * merges.size() + 2)), mask_(entries_.size() - 1) {
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = key(merge.left, merge.right);
    std::size_t at = slot(pair);
    while (entries_[at].result >= 0 && entries_[at].pair != pair) at = (at + 1) & mask_;
    entries_[at] = {pair, rank++, merge.result};
  }
}

}  // namespace trestle::tokens
