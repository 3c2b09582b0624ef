#include "trestle/tokens/tokenizers/bpe_model.h"

#include <algorithm>
#include <limits>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tokens {
namespace {

// The heap's top is the candidate with the lowest order.
bool merges_later(const BpeModel::Scratch::Candidate& a, const BpeModel::Scratch::Candidate& b) {
  return a.order > b.order;
}

}  // namespace

BpeModel::BpeModel(const BpeParts& parts)
    : merges_(parts.merges), unknown_(parts.unknown), fuse_unknown_(parts.fuse_unknown) {
  bytes_.fill(-1);
  std::size_t total = 0;
  for (const BpeToken& token : parts.tokens) total += token.bytes.size();
  if (parts.ignore_merges) whole_word_bytes_.reserve(total);
  Id id = 0;
  for (const BpeToken& token : parts.tokens) {
    if (token.word && token.bytes.size() == 1) {
      bytes_[static_cast<unsigned char>(token.bytes[0])] = id;
    }
    if (token.word && parts.ignore_merges) {
      const std::size_t begin = whole_word_bytes_.size();
      whole_word_bytes_ += token.bytes;  // within the reserved memory, so that the views stay valid
      whole_words_.emplace(std::string_view(whole_word_bytes_).substr(begin), id);
    }
    ++id;
  }
}

void BpeModel::encode(std::string_view word, Scratch* scratch, std::vector<Id>* out) const {
  if (const auto known = scratch->cache.find(word)) {
    out->insert(out->end(), known->begin(), known->end());
    return;
  }
  const auto whole = whole_words_.find(word);
  if (whole != whole_words_.end()) {
    out->push_back(whole->second);
    return;
  }
  merge(word, scratch);
  scratch->cache.insert(word, scratch->ids);
  out->insert(out->end(), scratch->ids.begin(), scratch->ids.end());
}

void BpeModel::first_symbols(std::string_view word, Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  symbols.clear();
  symbols.reserve(word.size());
  const auto add = [&](Id id) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  bool after_unknown = false;
  for (const char byte : word) {
    const Id id = bytes_[static_cast<unsigned char>(byte)];
    if (id >= 0) {
      add(id);
    } else if (unknown_ >= 0 && !(after_unknown && fuse_unknown_)) {
      add(unknown_);
    }
    after_unknown = id < 0;
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void BpeModel::push(std::int32_t at, Scratch* scratch) const {
  const auto& symbol = scratch->symbols[static_cast<std::size_t>(at)];
  if (symbol.next < 0) return;
  const Id right = scratch->symbols[static_cast<std::size_t>(symbol.next)].id;
  const MergeTable::Entry* entry = merges_.find(symbol.id, right);
  if (entry == nullptr) return;
  const std::uint64_t order = std::uint64_t{entry->rank} << 32 | static_cast<std::uint32_t>(at);
  scratch->heap.push_back({order, symbol.id, right, entry->result});
}

void BpeModel::merge(std::string_view word, Scratch* scratch) const {
  if (word.size() > std::size_t{std::numeric_limits<std::int32_t>::max()}) {
    throw UsageError(text("a word of ", word.size(), " bytes is too long for byte-pair encoding"),
                     {.hint = "Split the text into several texts of at most 2 GB."});
  }
  first_symbols(word, scratch);
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  for (std::size_t at = 0; at + 1 < symbols.size(); ++at)
    push(static_cast<std::int32_t>(at), scratch);
  std::make_heap(heap.begin(), heap.end(), merges_later);
  const auto push_later = [&](std::int32_t at) {
    const std::size_t before = heap.size();
    push(at, scratch);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), merges_later);
  };
  while (!heap.empty()) {
    const Scratch::Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), merges_later);
    heap.pop_back();
    const auto at = static_cast<std::int32_t>(top.order & 0xFFFFFFFFU);
    auto& left = symbols[static_cast<std::size_t>(at)];
    // An earlier merge may have taken one of the two.
    if (left.id != top.left || left.next < 0) continue;
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.id != top.right) continue;
    left.id = top.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = at;
    if (left.previous >= 0) push_later(left.previous);
    push_later(at);
  }
  scratch->ids.clear();
  for (std::int32_t at = symbols.empty() ? -1 : 0; at >= 0;) {
    const auto& symbol = symbols[static_cast<std::size_t>(at)];
    scratch->ids.push_back(symbol.id);
    at = symbol.next;
  }
}

}  // namespace trestle::tokens
