#include "trestle/tokens/tokenizers/split_syntax.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/unicode_classes.h"

namespace trestle::tokens {
namespace {

// English contractions. Other groups that ignore case might match characters that fold to several.
constexpr std::array<std::string_view, 2> contractions = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                                                          "(?i:[sdmt]|ll|ve|re)"};

class SplitSyntax {
 public:
  SplitSyntax(std::string_view pattern, const std::string& file) : pattern_(pattern), file_(file) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      if (contraction()) continue;
      switch (pattern_[at_]) {
        case '\\':
          escape();
          break;
        case '[':
          open_class();
          break;
        case ']':
          close_class();
          break;
        case '(':
          group();
          break;
        case '?':
        case '*':
        case '+':
        case '{':
          repetition();
          break;
        case '.':
        case '^':
        case '$':
          if (!in_class_) refuse();
          [[fallthrough]];
        default:
          literal();
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse() const {
    throw FormatError(
        text("pre_tokenizer: the regular expression '", pattern_, "' has syntax at character ",
             at_ + 1, " that trestle does not translate to PCRE2"),
        {.file = file_,
         .hint = "Use a tokenizer with the pre-tokenizer of GPT-2, Llama-3, SmolLM2 or Qwen2, "
                 "or a simpler expression."});
  }

  std::string_view rest() const { return pattern_.substr(at_); }

  bool contraction() {
    if (in_class_) return false;
    for (const std::string_view known : contractions) {
      if (!rest().starts_with(known)) continue;
      out_ += known;
      at_ += known.size();
      return true;
    }
    return false;
  }

  void escape() {
    constexpr std::string_view punctuation = "\\.'-|/()[]{}+*?^$\"!#&,:;<=>@_`~% ";
    for (const auto& [name, members] :
         {std::pair{"p{L}", unicode_letters()}, std::pair{"p{N}", unicode_numbers()},
          std::pair{"s", unicode_white_space()}}) {
      if (class_escape(name, members)) return;
    }
    const char next = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (next != 'r' && next != 'n' && next != 't' && punctuation.find(next) == std::string::npos) {
      refuse();
    }
    out_ += '\\';
    out_ += next;
    at_ += 2;
  }

  // \p{L} and its negation \P{L}: members in a class, a class of its own elsewhere.
  bool class_escape(std::string_view name, std::string_view members) {
    const std::string_view found = rest().substr(1, name.size());
    if (found.empty() || found.substr(1) != name.substr(1)) return false;
    const char upper = static_cast<char>(name[0] - 'a' + 'A');
    if (found[0] != name[0] && found[0] != upper) return false;
    const bool negated = found[0] == upper;
    if (negated && in_class_) refuse();
    if (in_class_) {
      out_ += members;
    } else {
      out_ += text(negated ? "[^" : "[", members, "]");
    }
    at_ += 1 + name.size();
    return true;
  }

  void open_class() {
    if (in_class_) refuse();  // Oniguruma has classes in classes
    in_class_ = true;
    out_ += '[';
    ++at_;
    if (rest().starts_with("^")) {
      out_ += '^';
      ++at_;
    }
    if (rest().starts_with("]")) refuse();
  }

  void close_class() {
    if (!in_class_) refuse();
    in_class_ = false;
    literal();
  }

  void group() {
    if (in_class_) return literal();
    constexpr std::array<std::string_view, 3> openings = {"(?:", "(?!", "(?="};
    for (const std::string_view opening : openings) {
      if (!rest().starts_with(opening)) continue;
      out_ += opening;
      at_ += opening.size();
      return;
    }
    if (rest().starts_with("(?") || rest().starts_with("(*")) refuse();
    literal();
  }

  void repetition() {
    if (in_class_) return literal();
    if (pattern_[at_] != '{') {
      literal();
      if (rest().starts_with("+") || rest().starts_with("?")) literal();
    } else {
      const std::size_t end = pattern_.find('}', at_);
      constexpr std::size_t longest = 10;
      if (end == std::string_view::npos || end - at_ < 2 || end - at_ > longest) refuse();
      const std::string_view inside = pattern_.substr(at_ + 1, end - at_ - 1);
      const bool numbers = inside[0] >= '0' && inside[0] <= '9' &&
                           inside.find_first_not_of("0123456789,") == std::string_view::npos &&
                           std::count(inside.begin(), inside.end(), ',') <= 1;
      if (!numbers) refuse();
      out_ += pattern_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    }
    // In Oniguruma "{1,3}+" repeats the repetition.
    if (!rest().empty() && std::string_view("?*+{").find(rest()[0]) != std::string_view::npos) {
      refuse();
    }
  }

  void literal() {
    if (in_class_ && rest().starts_with("&&")) refuse();  // Oniguruma's intersection
    out_ += pattern_[at_++];
  }

  std::string_view pattern_;
  const std::string& file_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string split_syntax(std::string_view pattern, const std::string& file) {
  return SplitSyntax(pattern, file).translate();
}

}  // namespace trestle::tokens
