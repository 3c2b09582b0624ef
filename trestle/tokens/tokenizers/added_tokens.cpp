#include "trestle/tokens/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "trestle/tokens/tokenizers/code_points.h"

namespace trestle::tokens {
namespace {

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word_character(code_point_before(text, begin).code)) return false;
  return end == text.size() || !is_word_character(code_point_at(text, end).code);
}

std::size_t before_white_space(std::string_view text, std::size_t begin) {
  while (begin > 0) {
    const CodePoint last = code_point_before(text, begin);
    if (!is_white_space(last.code)) break;
    begin -= last.length;
  }
  return begin;
}

std::size_t after_white_space(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    const CodePoint next = code_point_at(text, end);
    if (!is_white_space(next.code)) break;
    end += next.length;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& spellings)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (spellings[i].empty()) continue;
    may_begin_[static_cast<unsigned char>(spellings[i][0])] = true;
    std::size_t node = 0;
    for (const char byte : spellings[i]) {
      const auto [edge, is_new] =
          nodes_[node].next.try_emplace(static_cast<unsigned char>(byte), nodes_.size());
      node = edge->second;
      if (is_new) nodes_.emplace_back();
    }
    if (nodes_[node].token < 0) nodes_[node].token = static_cast<std::ptrdiff_t>(i);
  }
}

AddedTokens::Match AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  Match best;
  std::size_t node = 0;
  while (at < text.size()) {
    const auto edge = nodes_[node].next.find(static_cast<unsigned char>(text[at]));
    if (edge == nodes_[node].next.end()) break;
    node = edge->second;
    ++at;
    if (nodes_[node].token >= 0) best = {nodes_[node].token, at};
  }
  return best;
}

void AddedTokens::split(std::string_view text, Specials specials, std::vector<Part>* out) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    if (!may_begin_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text, at);
    if (match.token < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.token)];
    std::size_t begin = at;
    std::size_t end = match.end;
    at = end;  // the search continues after the spelling, also after one that does not count
    if (token.special && specials == Specials::AsText) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(before_white_space(text, begin), done);
    if (token.rstrip) end = after_white_space(text, end);
    // The token before has taken this one's white space, and all of its spelling. Python leaves it
    // out too, or panics where the token before has taken more than that.
    if (begin >= end) continue;
    if (done < begin) out->push_back({-1, text.substr(done, begin - done)});
    out->push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) out->push_back({-1, text.substr(done)});
}

}  // namespace trestle::tokens
