#include "trestle/tokens/tokenizers/vocabulary.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

BpeToken& Vocabulary::slot(std::int64_t id, std::string_view spelling) {
  // Files leave some ids out. A wrong number must not allocate memory without end.
  constexpr std::size_t most_missing = 65536;
  if (id < 0 || static_cast<std::uint64_t>(id) >= 2 * most_ + most_missing) {
    throw FormatError(text("token '", spelling, "' has the id ", id, ", but the vocabulary has ",
                           most_, " tokens"),
                      {.file = file_});
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  if (!tokens_[index].bytes.empty()) {
    throw FormatError(text("two tokens have the id ", id, "; one of them is '", spelling, "'"),
                      {.file = file_});
  }
  return tokens_[index];
}

void Vocabulary::add_word(std::string_view spelling, std::int64_t id) {
  if (spelling.empty()) return;
  BpeToken& token = slot(id, spelling);
  if (!ids_.emplace(spelling, static_cast<Id>(id)).second) {
    throw FormatError(text("token '", spelling, "' occurs twice"), {.file = file_});
  }
  const auto bytes = alphabet_.bytes(spelling);
  token = bytes ? BpeToken{*bytes, true} : BpeToken{std::string(spelling), false};
}

void Vocabulary::add_other(std::string_view bytes, std::int64_t id) {
  if (bytes.empty()) return;
  slot(id, bytes) = {std::string(bytes), false};
}

Id Vocabulary::find(std::string_view spelling) const {
  const auto found = ids_.find(spelling);
  return found == ids_.end() ? -1 : found->second;
}

void Vocabulary::add_merge(std::string_view left, std::string_view right) {
  const std::string both = std::string(left).append(right);
  const Merge merge = {find(left), find(right), find(both)};
  if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
    const std::string_view missing = merge.left < 0 ? left : merge.right < 0 ? right : both;
    throw FormatError(text("merge ", merges_.size(), ", '", left, " ", right, "', has '", missing,
                           "', which is not in the vocabulary"),
                      {.file = file_});
  }
  merges_.push_back(merge);
}

void Vocabulary::add_merge_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    throw FormatError(text("merge ", merges_.size(), ", '", line,
                           "', is not two tokens with one space between them"),
                      {.file = file_});
  }
  add_merge(line.substr(0, space), line.substr(space + 1));
}

void Vocabulary::finish(BpeParts* parts) {
  parts->tokens = std::move(tokens_);
  parts->merges = std::move(merges_);
}

}  // namespace trestle::tokens
