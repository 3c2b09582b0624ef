#include "trestle/megatron/flags.h"

#include <algorithm>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::megatron {

namespace {

struct Word {
  std::string text;
  int line = 1;
};

constexpr bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}

  // Nothing at the end of the text.
  std::optional<Word> next() {
    skip_blanks();
    if (at_ == text_.size()) return std::nullopt;
    Word word{.text = {}, .line = line_};
    while (at_ < text_.size() && !is_blank(text_[at_])) take_part(word.text);
    return word;
  }

 private:
  // A backslash and the line's end behind it, which a shell removes. 0: there is none.
  std::size_t joined_lines() const {
    if (text_[at_] != '\\') return 0;
    if (text_.substr(at_ + 1).starts_with("\r\n")) return 3;
    return at_ + 1 == text_.size() || text_[at_ + 1] == '\n' ? 2 : 0;
  }

  void advance(std::size_t count) {
    for (; count > 0 && at_ < text_.size(); --count) line_ += text_[at_++] == '\n' ? 1 : 0;
  }

  void skip_blanks() {
    while (at_ < text_.size()) {
      if (is_blank(text_[at_]))
        advance(1);
      else if (const std::size_t joined = joined_lines(); joined > 0)
        advance(joined);
      else if (text_[at_] == '#')
        advance(std::min(text_.find('\n', at_), text_.size()) - at_);
      else
        return;
    }
  }

  void take_part(std::string& word) {
    const char c = text_[at_];
    if (const std::size_t joined = joined_lines(); joined > 0) return advance(joined);
    if (c == '\'' || c == '"') return take_quoted(c, word);
    if (c == '\\') advance(1);
    word += text_[at_];
    advance(1);
  }

  void take_quoted(char quote, std::string& word) {
    const int begins = line_;
    advance(1);
    while (at_ < text_.size() && text_[at_] != quote) {
      const bool escapes =
          quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size() &&
          std::string_view("\"\\$`\n").find(text_[at_ + 1]) != std::string_view::npos;
      if (escapes) advance(1);
      if (!escapes || text_[at_] != '\n') word += text_[at_];
      advance(1);
    }
    if (at_ == text_.size())
      throw UsageError(
          text("Megatron-LM's flags: the quote ", quote, " in line ", begins, " has no end"),
          {.hint = "Close the quote."});
    advance(1);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

bool is_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return std::string_view("0123456789.").find(word[1]) == std::string_view::npos;
}

}  // namespace

std::vector<Flag> parse_flags(std::string_view text) {
  std::vector<Flag> flags;
  std::vector<std::string> before;
  Words words(text);
  while (const auto word = words.next()) {
    if (!is_flag(word->text)) {
      if (flags.empty())
        before.push_back("'" + on_one_line(word->text) + "'");
      else
        flags.back().values.push_back(word->text);
      continue;
    }
    const std::size_t equals = word->text.find('=');
    flags.push_back({.name = word->text.substr(0, equals), .values = {}, .line = word->line});
    if (equals != std::string::npos) flags.back().values.push_back(word->text.substr(equals + 1));
  }
  if (!before.empty())
    throw UsageError(trestle::text("Megatron-LM's flags: ", join(before, ", "),
                                   before.size() == 1 ? " belongs" : " belong", " to no flag"),
                     {.hint = "Give the flags alone, without torchrun and the program's name."});
  return flags;
}

std::string on_one_line(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string line;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return text.size() > longest ? line + "..." : line;
}

}  // namespace trestle::megatron
