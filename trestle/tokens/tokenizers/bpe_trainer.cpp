#include "trestle/tokens/tokenizers/bpe_trainer.h"

#include <algorithm>

namespace trestle::tokens {

BpeTrainer::BpeTrainer(const std::vector<std::pair<std::string, std::int64_t>>& words,
                       const std::array<Id, 256>& byte_ids) {
  words_.reserve(words.size());
  for (const auto& [bytes, count] : words) {
    Word word{.ids = {}, .count = count};
    for (const char byte : bytes) word.ids.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    words_.push_back(std::move(word));
    const auto index = static_cast<std::uint32_t>(words_.size() - 1);
    const std::vector<Id>& ids = words_.back().ids;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) count_pair(ids[i], ids[i + 1], count, index);
  }
  for (const auto& [pair, places] : pairs_) {
    queue_.push({static_cast<Id>(pair >> 32), static_cast<Id>(pair & 0xFFFFFFFFU), places.count});
  }
  grown_.clear();
}

void BpeTrainer::count_pair(Id left, Id right, std::int64_t count, std::uint32_t word) {
  Places& places = pairs_[key(left, right)];
  places.count += count;
  if (count <= 0) return;
  if (places.words.empty() || places.words.back() != word) places.words.push_back(word);
  grown_.push_back(key(left, right));
}

std::optional<BpeTrainer::Pair> BpeTrainer::most_frequent() {
  while (!queue_.empty()) {
    Pair top = queue_.top();
    queue_.pop();
    const std::int64_t count = pairs_[key(top.left, top.right)].count;
    if (count == top.count && count > 0) return top;
    // Other merges took some of its places.
    top.count = count;
    if (count > 0) queue_.push(top);
  }
  return std::nullopt;
}

void BpeTrainer::merge(const Pair& pair, Id result) {
  std::vector<std::uint32_t> places = std::move(pairs_[key(pair.left, pair.right)].words);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  grown_.clear();
  for (const std::uint32_t word : places) merge_in_word(pair, result, word);
  pairs_.erase(key(pair.left, pair.right));
  std::sort(grown_.begin(), grown_.end());
  grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
  for (const std::uint64_t grown : grown_) {
    const std::int64_t count = pairs_[grown].count;
    if (count > 0) {
      queue_.push({static_cast<Id>(grown >> 32), static_cast<Id>(grown & 0xFFFFFFFFU), count});
    }
  }
}

void BpeTrainer::merge_in_word(const Pair& pair, Id result, std::uint32_t index) {
  Word& word = words_[index];
  const std::vector<Id> before = word.ids;
  std::vector<Id>& after = word.ids;
  after.clear();
  bool found = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool here =
        before[i] == pair.left && i + 1 < before.size() && before[i + 1] == pair.right;
    after.push_back(here ? result : before[i]);
    if (here) ++i;
    found = found || here;
  }
  if (!found) return;
  for (std::size_t i = 0; i + 1 < before.size(); ++i) {
    count_pair(before[i], before[i + 1], -word.count, index);
  }
  for (std::size_t i = 0; i + 1 < after.size(); ++i) {
    count_pair(after[i], after[i + 1], word.count, index);
  }
}

}  // namespace trestle::tokens
