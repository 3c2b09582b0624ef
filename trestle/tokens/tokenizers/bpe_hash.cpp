#include "trestle/tokens/tokenizers/bpe_hash.h"

#include <algorithm>
#include <vector>

#include "trestle/tokens/tokenizers/content_hash.h"

namespace trestle::tokens {
namespace {

// Without a normalizer it makes no difference when a token is found, unless some are found later
// than others.
bool order_matters(const BpeParts& parts) {
  const auto count = std::count_if(parts.added.begin(), parts.added.end(),
                                   [](const AddedToken& token) { return token.normalized; });
  const bool mixed = count > 0 && count < static_cast<std::ptrdiff_t>(parts.added.size());
  return mixed || !parts.normalizations.empty();
}

void add_tokens(const BpeParts& parts, ContentHash* hash) {
  std::vector<bool> added(parts.tokens.size());
  for (const AddedToken& token : parts.added) added[static_cast<std::size_t>(token.id)] = true;
  hash->add(static_cast<std::int64_t>(parts.tokens.size()));
  for (std::size_t id = 0; id < parts.tokens.size(); ++id) {
    const BpeToken& token = parts.tokens[id];
    hash->add(token.bytes);
    // The files differ in whether an added token is also a word; it matters only for whole words.
    if (!added[id] || parts.ignore_merges) hash->add(std::int64_t{token.word});
  }
  std::vector<AddedToken> sorted = parts.added;
  std::sort(sorted.begin(), sorted.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  const bool with_order = order_matters(parts);
  for (const AddedToken& token : sorted) {
    hash->add(token.id);
    hash->add(token.text);
    hash->add(token.special + 2 * token.single_word + 4 * token.lstrip + 8 * token.rstrip +
              16 * (with_order && token.normalized));
  }
}

}  // namespace

std::string bpe_hash(const BpeParts& parts) {
  ContentHash hash;
  hash.add("byte-level BPE");
  add_tokens(parts, &hash);
  for (const Merge& merge : parts.merges) {
    hash.add(merge.left);
    hash.add(merge.right);
    hash.add(merge.result);
  }
  for (const SplitStage& stage : parts.stages) {
    hash.add(stage.pattern);
    hash.add(static_cast<std::int64_t>(stage.keep));
    hash.add(std::int64_t{stage.add_prefix_space});
  }
  for (const Normalization form : parts.normalizations) {
    hash.add(static_cast<std::int64_t>(form));
  }
  for (const auto* ids : {&parts.prefix, &parts.suffix}) {
    hash.add(static_cast<std::int64_t>(ids->size()));
    for (const Id id : *ids) hash.add(id);
  }
  hash.add(parts.unknown);
  hash.add(parts.fuse_unknown + 2 * parts.ignore_merges);
  return hash.digits();
}

}  // namespace trestle::tokens
