#include "trestle/tokens/tokenizers/word_cache.h"

#include <cstring>

namespace trestle::tokens {
namespace {

constexpr std::size_t most_slots = std::size_t{1} << 17;

// Eight bytes at a time. The result stays in memory, so it may depend on the machine.
std::uint64_t hash_of_word(std::string_view word) {
  constexpr std::uint64_t factor = 0x9E3779B97F4A7C15ULL;
  std::uint64_t hash = word.size() * factor;
  const char* at = word.data();
  std::size_t left = word.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t block = 0;
    std::memcpy(&block, at, 8);
    hash = (hash ^ block) * factor;
    hash ^= hash >> 32;
  }
  std::uint64_t block = 0;
  std::memcpy(&block, at, left);
  hash = (hash ^ block) * factor;
  return hash ^ hash >> 32;
}

}  // namespace

std::optional<std::span<const Id>> WordCache::find(std::string_view word) const {
  if (word.size() > longest_word) return std::nullopt;
  const std::uint64_t hash = hash_of_word(word);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at].used; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.hash == hash && slot.length == word.size() &&
        std::memcmp(bytes_.data() + slot.word, word.data(), word.size()) == 0) {
      return std::span<const Id>(ids_.data() + slot.ids, slot.count);
    }
  }
  return std::nullopt;
}

void WordCache::insert(std::string_view word, std::span<const Id> ids) {
  if (word.size() > longest_word) return;
  if (2 * used_ >= slots_.size()) grow();
  const std::uint64_t hash = hash_of_word(word);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].used) at = (at + 1) & mask;
  slots_[at] = {hash,
                static_cast<std::uint32_t>(bytes_.size()),
                static_cast<std::uint32_t>(ids_.size()),
                static_cast<std::uint8_t>(word.size()),
                static_cast<std::uint8_t>(ids.size()),
                true};
  bytes_.append(word);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void WordCache::grow() {
  if (slots_.size() >= most_slots) return clear();
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (!slot.used) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].used) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

void WordCache::clear() {
  slots_.assign(slots_.size(), {});
  used_ = 0;
  bytes_.clear();
  ids_.clear();
}

}  // namespace trestle::tokens
