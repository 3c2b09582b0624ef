#include "trestle/schedule/action.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <type_traits>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::schedule {
namespace {

// Whether a micro-batch number follows the kind.
enum class Numbered { Yes, No };

struct Word {
  Kind kind;
  std::string_view text;
  Numbered numbered;
};

constexpr std::array<Word, 18> words = {{
    {Kind::Forward, "F", Numbered::Yes},
    {Kind::Backward, "B", Numbered::Yes},
    {Kind::InputGrad, "I", Numbered::Yes},
    {Kind::WeightGrad, "W", Numbered::Yes},
    {Kind::Recompute, "R", Numbered::Yes},
    {Kind::SendActivation, "SEND_F", Numbered::Yes},
    {Kind::RecvActivation, "RECV_F", Numbered::Yes},
    {Kind::SendGradient, "SEND_B", Numbered::Yes},
    {Kind::RecvGradient, "RECV_B", Numbered::Yes},
    {Kind::SendSkip, "SEND_SKIP", Numbered::Yes},
    {Kind::RecvSkip, "RECV_SKIP", Numbered::Yes},
    {Kind::SendSkipGradient, "SEND_SKIP_B", Numbered::Yes},
    {Kind::RecvSkipGradient, "RECV_SKIP_B", Numbered::Yes},
    {Kind::Unshard, "UNSHARD", Numbered::No},
    {Kind::Reshard, "RESHARD", Numbered::No},
    {Kind::ReduceGrad, "REDUCE_GRAD", Numbered::No},
    {Kind::Norm, "NORM", Numbered::No},
    {Kind::Step, "STEP", Numbered::No},
}};
constexpr std::string_view overlap_word = "OVERLAP_F_B";

bool needs_route(Kind kind) {
  return kind == Kind::SendSkip || kind == Kind::RecvSkip || kind == Kind::SendSkipGradient ||
         kind == Kind::RecvSkipGradient;
}

const Word& word_of(Kind kind) {
  for (const auto& word : words) {
    if (word.kind == kind) return word;
  }
  throw UsageError(text("no text form for action kind ", static_cast<int>(kind)));
}

// Parses one action from the front of `rest`. Without a match it returns nothing, and `rest` is
// undefined.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  bool done() const { return rest_.empty(); }

  bool take(std::string_view what) {
    if (rest_.substr(0, what.size()) != what) return false;
    rest_.remove_prefix(what.size());
    return true;
  }

  template <class Integer>
  bool number(Integer* out) {
    if (rest_.empty() || rest_.front() < '0' || rest_.front() > '9') return false;
    const auto [end, failure] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), *out);
    if (failure != std::errc{}) return false;
    // Callers compute counts as the largest number plus one, so refuse the largest integer.
    constexpr bool is_count = !std::is_same_v<Integer, std::uint8_t>;
    if (is_count && *out == std::numeric_limits<Integer>::max()) return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }

  const Word* word() {
    std::size_t length = 0;
    while (length < rest_.size() &&
           (rest_[length] == '_' || (rest_[length] >= 'A' && rest_[length] <= 'Z'))) {
      ++length;
    }
    for (const auto& word : words) {
      if (word.text != rest_.substr(0, length)) continue;
      rest_.remove_prefix(length);
      return &word;
    }
    return nullptr;
  }

  std::optional<Action> plain() {
    Action action;
    if (!number(&action.stage)) return std::nullopt;
    const Word* found = word();
    if (found == nullptr) return std::nullopt;
    action.kind = found->kind;
    if (found->numbered == Numbered::Yes && !number(&action.micro_batch)) return std::nullopt;
    if (needs_route(action.kind) && !(take(":r") && number(&action.route))) return std::nullopt;
    return action;
  }

  std::optional<Action> overlap() {
    const auto first = plain();
    if (!first || first->kind != Kind::Forward || !take(";")) return std::nullopt;
    const auto second = plain();
    if (!second || second->kind != Kind::Backward || !take(")") || !take(overlap_word))
      return std::nullopt;
    Action action = *first;
    action.kind = Kind::OverlapForwardBackward;
    action.partner_stage = second->stage;
    action.partner_micro_batch = second->micro_batch;
    return action;
  }

  std::optional<Action> whole() {
    auto action = take("(") ? overlap() : plain();
    if (!action) return std::nullopt;
    if (take("@") && (!number(&action->threads) || action->threads == 0)) return std::nullopt;
    if (!done()) return std::nullopt;
    return action;
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string to_string(const Action& action) {
  std::string out;
  if (action.kind == Kind::OverlapForwardBackward) {
    out = text("(", action.stage, "F", action.micro_batch, ";", action.partner_stage, "B",
               action.partner_micro_batch, ")", overlap_word);
  } else {
    const Word& word = word_of(action.kind);
    out = text(action.stage, word.text);
    if (word.numbered == Numbered::Yes) out += std::to_string(action.micro_batch);
    if (needs_route(action.kind)) out += text(":r", action.route);
  }
  if (action.threads != 0) out += text("@", static_cast<int>(action.threads));
  return out;
}

Action parse_action(std::string_view text) {
  if (auto action = Reader(text).whole()) return *action;
  constexpr std::size_t most_shown = 60;
  throw FormatError(trestle::text("'", printable(text, most_shown), "' is not a schedule action"),
                    {.hint = trestle::text(
                         "Expected a stage (0 to ", std::numeric_limits<std::int16_t>::max() - 1,
                         "), a kind and a micro-batch, such as 2F0, 1B3, 0SEND_F2 or "
                         "0SEND_SKIP2:r1.")});
}

}  // namespace trestle::schedule
