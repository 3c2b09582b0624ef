#include "trestle/tokens/stream_decoder.h"

#include <string_view>
#include <utility>

#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {

std::string StreamDecoder::add(Id id) {
  const std::string_view bytes = tokenizer_.bytes(id);
  if (special_tokens_ == SpecialTokens::Skip && tokenizer_.is_special(id)) return "";
  if (at_begin_) {
    add_first(id);
  } else {
    pending_ += bytes;
  }
  const std::size_t ready = pending_.size() - unfinished_utf8(pending_);
  std::string storage;
  std::string out(valid_utf8(std::string_view(pending_).substr(0, ready), &storage));
  pending_.erase(0, ready);
  return out;
}

// SentencePiece drops the space before a text's first word, which may be a token of its own.
void StreamDecoder::add_first(Id id) {
  first_.push_back(id);
  const std::string_view bytes = tokenizer_.bytes(id);
  const std::string decoded = tokenizer_.decode(first_);
  const bool only_spaces = bytes.find_first_not_of(' ') == std::string_view::npos;
  if (decoded.empty() && only_spaces) return;
  // The decoded text of an unfinished character is U+FFFD, which is no end of the bytes.
  pending_ = bytes.ends_with(decoded) ? decoded : bytes;
  at_begin_ = false;
}

std::string StreamDecoder::finish() {
  std::string storage;
  std::string out(valid_utf8(pending_, &storage));
  pending_.clear();
  first_.clear();
  at_begin_ = true;
  return out;
}

}  // namespace trestle::tokens
