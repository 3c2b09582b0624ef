#include "trestle/tokens/tokenizers/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/bpe_hash.h"
#include "trestle/tokens/tokenizers/normalize_unicode.h"
#include "trestle/tokens/tokenizers/split_syntax.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {

struct BpeTokenizer::Stage {
  SplitPattern pattern;
  SplitStage::Keep keep = SplitStage::Keep::Everything;
  bool divides = true;
  bool add_prefix_space = false;
};

struct BpeTokenizer::Scratch {
  std::string valid;
  std::vector<AddedTokens::Part> parts;
  std::vector<AddedTokens::Part> normalized_parts;
  std::vector<SplitPattern::Workspace> workspaces;  // one for each stage
  BpeModel::Scratch model;
};

BpeTokenizer::~BpeTokenizer() = default;

BpeTokenizer::BpeTokenizer(BpeParts parts) : parts_(std::move(parts)) {
  check_parts();
  for (const SplitStage& stage : parts_.stages) {
    stages_.push_back({SplitPattern(split_syntax(stage.pattern, parts_.source), parts_.source),
                       stage.keep, !stage.pattern.empty(), stage.add_prefix_space});
  }
  model_ = std::make_unique<BpeModel>(parts_);

  std::vector<AddedToken> before;
  std::vector<AddedToken> after;
  std::vector<std::string> before_spellings;
  std::vector<std::string> after_spellings;
  special_.resize(parts_.tokens.size());
  for (const AddedToken& token : parts_.added) {
    parts_.tokens[static_cast<std::size_t>(token.id)].bytes = token.text;
    special_[static_cast<std::size_t>(token.id)] = token.special;
    (token.normalized ? after : before).push_back(token);
    std::string spelling = token.text;
    if (token.normalized) {
      for (const Normalization form : parts_.normalizations) {
        spelling = normalize_unicode(spelling, form);
      }
    }
    (token.normalized ? after_spellings : before_spellings).push_back(std::move(spelling));
  }
  found_before_normalization_ = std::make_unique<AddedTokens>(before, before_spellings);
  found_after_normalization_ = std::make_unique<AddedTokens>(after, after_spellings);

  for (const AddedToken& token : parts_.added) {
    ids_.emplace(parts_.tokens[static_cast<std::size_t>(token.id)].bytes, token.id);
  }
  for (std::size_t id = 0; id < parts_.tokens.size(); ++id) {
    const std::string& bytes = parts_.tokens[id].bytes;
    if (!bytes.empty()) ids_.emplace(bytes, static_cast<Id>(id));
  }
  hash_ = bpe_hash(parts_);
}

void BpeTokenizer::check_parts() const {
  const auto check = [&](Id id, std::string_view what) {
    if (id >= 0 && id < size()) return;
    throw FormatError(text(what, " has the id ", id, ", but ids are 0 to ", size() - 1),
                      {.file = parts_.source});
  };
  for (const Merge& merge : parts_.merges) {
    for (const Id id : {merge.left, merge.right, merge.result}) check(id, "a merge");
  }
  for (const AddedToken& token : parts_.added) {
    check(token.id, text("the added token '", token.text, "'"));
  }
  for (const auto* ids : {&parts_.prefix, &parts_.suffix}) {
    for (const Id id : *ids) check(id, "a token before or after each text");
  }
  if (parts_.unknown != -1) check(parts_.unknown, "the unknown token");
}

std::unique_ptr<BpeTokenizer::Scratch> BpeTokenizer::take_scratch() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_scratches_.empty()) {
      auto scratch = std::move(free_scratches_.back());
      free_scratches_.pop_back();
      return scratch;
    }
  }
  auto scratch = std::make_unique<Scratch>();
  for (const Stage& stage : stages_) scratch->workspaces.emplace_back(stage.pattern);
  return scratch;
}

std::vector<Id> BpeTokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<Id> ids;
  auto scratch = take_scratch();
  const std::string_view valid = valid_utf8(text, &scratch->valid);
  scratch->parts.clear();
  found_before_normalization_->split(valid, specials, &scratch->parts);
  for (const AddedTokens::Part& part : scratch->parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else if (parts_.normalizations.empty()) {
      encode_normalized(part.text, specials, scratch.get(), &ids);
    } else {
      std::string normalized(part.text);
      for (const Normalization form : parts_.normalizations) {
        normalized = normalize_unicode(normalized, form);
      }
      encode_normalized(normalized, specials, scratch.get(), &ids);
    }
  }
  const std::lock_guard lock(mutex_);
  free_scratches_.push_back(std::move(scratch));
  return ids;
}

void BpeTokenizer::encode_normalized(std::string_view text, Specials specials, Scratch* scratch,
                                     std::vector<Id>* out) const {
  scratch->normalized_parts.clear();
  found_after_normalization_->split(text, specials, &scratch->normalized_parts);
  for (const AddedTokens::Part& part : scratch->normalized_parts) {
    if (part.id >= 0) {
      out->push_back(part.id);
    } else {
      encode_words(0, part.text, scratch, out);
    }
  }
}

// Each stage sees the results of the one before as whole texts: a look-ahead ends at their end.
void BpeTokenizer::encode_words(std::size_t stage_index, std::string_view text, Scratch* scratch,
                                std::vector<Id>* out) const {
  if (stage_index == stages_.size()) return model_->encode(text, &scratch->model, out);
  const Stage& stage = stages_[stage_index];
  std::string with_space;
  if (stage.add_prefix_space && !text.starts_with(' ')) {
    with_space.reserve(text.size() + 1);
    with_space += ' ';
    with_space += text;
    text = with_space;
  }
  if (!stage.divides) return encode_words(stage_index + 1, text, scratch, out);
  SplitPattern::Workspace* workspace = &scratch->workspaces[stage_index];
  std::size_t done = 0;
  const auto between = [&](std::size_t end) {
    if (end > done && stage.keep != SplitStage::Keep::Matches) {
      encode_words(stage_index + 1, text.substr(done, end - done), scratch, out);
    }
  };
  SplitPattern::Match match;
  while (done < text.size() && stage.pattern.find(text, done, workspace, &match)) {
    if (match.end == match.begin) break;
    between(match.begin);
    if (stage.keep != SplitStage::Keep::BetweenMatches) {
      encode_words(stage_index + 1, text.substr(match.begin, match.end - match.begin), scratch,
                   out);
    }
    done = match.end;
  }
  between(text.size());
}

std::string_view BpeTokenizer::bytes(Id id) const {
  if (id < 0 || id >= size()) {
    throw UsageError(
        text("token id ", id, " is out of range; the ids of this tokenizer are 0 to ", size() - 1),
        {.file = parts_.source});
  }
  return parts_.tokens[static_cast<std::size_t>(id)].bytes;
}

Id BpeTokenizer::size() const { return static_cast<Id>(parts_.tokens.size()); }

bool BpeTokenizer::is_special(Id id) const {
  return id >= 0 && id < size() && special_[static_cast<std::size_t>(id)];
}

Id BpeTokenizer::find(std::string_view spelling) const {
  const auto found = ids_.find(spelling);
  return found == ids_.end() ? -1 : found->second;
}

}  // namespace trestle::tokens
