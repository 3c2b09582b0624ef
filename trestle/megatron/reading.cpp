#include "trestle/megatron/reading.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/megatron/known_flags.h"

namespace trestle::megatron {

namespace {

template <class Number>
std::optional<Number> parse_whole(std::string_view word) {
  if (word.starts_with('+')) word.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::string unknown_flag(const Flag& flag) {
  constexpr std::size_t longest_compared = 60;  // the comparison is slow for long names
  std::vector<std::string> known;
  for (const KnownFlag& one : known_flags()) known.emplace_back(one.name);
  // Other programs, and older command lines, write underscores.
  std::string hyphens = flag.name;
  std::ranges::replace(hyphens, '_', '-');
  const std::string meant = find_known(hyphens) != nullptr ? "; did you mean '" + hyphens + "'?"
                            : hyphens.size() <= longest_compared ? did_you_mean(hyphens, known)
                                                                 : "";
  return text("line ", flag.line, ": unknown flag '", on_one_line(flag.name), "'", meant);
}

std::string range_text(double smallest, double largest) {
  return largest >= 1e9 ? text(" of at least ", smallest)
                        : text(" from ", smallest, " to ", largest);
}

bool is_empty_word(const std::string& value) { return trim(value).empty(); }

}  // namespace

Reading::Reading(std::vector<Flag> flags) : flags_(std::move(flags)) {
  std::set<std::string> seen;
  for (const Flag& flag : flags_) {
    if (!seen.insert(flag.name).second)
      problem(text("line ", flag.line, ": ", on_one_line(flag.name), " is given twice"));
    else
      check(flag);
  }
}

void Reading::check(const Flag& flag) {
  using Values = KnownFlag::Values;
  const KnownFlag* known = find_known(flag.name);
  if (known == nullptr) {
    const std::string_view why = why_family_is_refused(flag.name);
    problem(why.empty() ? unknown_flag(flag) : text(on_one_line(flag.name), ": ", why));
    return;
  }
  if (known->kind == KnownFlag::Kind::Refused) return problem(text(flag.name, ": ", known->reason));
  if (known->values == Values::None && !flag.values.empty())
    problem(text(flag.name, " takes no value, and '", on_one_line(flag.values[0]), "' follows it"));
  else if (known->values == Values::One && flag.values.size() > 1)
    problem(text(flag.name, " takes one value, and ", flag.values.size(), " follow it: '",
                 on_one_line(join(flag.values, " ")), "'",
                 std::ranges::any_of(flag.values, is_empty_word)
                     ? ": a backslash with a space behind it does not continue a line"
                     : ""));
  else if (known->values != Values::None && flag.values.empty())
    problem(text(flag.name, " has no value"));
  if (known->kind != KnownFlag::Kind::Idle) return;
  read_.insert(flag.name);
  note(text(flag.name, flag.values.empty() ? "" : " ", on_one_line(join(flag.values, " ")), ": ",
            known->reason));
}

void Reading::problem(std::string what) {
  if (std::ranges::find(problems_, what) == problems_.end()) problems_.push_back(std::move(what));
}

const Flag* Reading::find(std::string_view name) const {
  const auto found = std::ranges::find(flags_, name, &Flag::name);
  return found == flags_.end() ? nullptr : &*found;
}

bool Reading::has(std::string_view name) {
  if (find(name) == nullptr) return false;
  read_.emplace(name);
  return true;
}

const std::string* Reading::value(std::string_view name) {
  const Flag* flag = find(name);
  if (flag == nullptr) return nullptr;
  read_.emplace(name);
  return flag->values.empty() ? nullptr : &flag->values.front();
}

void Reading::refuse_value(std::string_view name, const std::string& value,
                           const std::string& allowed) {
  problem(text(name, " must be ", allowed, ", not '", on_one_line(value), "'",
               value.find('$') == std::string::npos
                   ? ""
                   : "; a variable of the shell has no value here: write it out"));
}

std::optional<std::int64_t> Reading::integer(std::string_view name, Integers range) {
  const std::string* word = value(name);
  if (word == nullptr) return std::nullopt;
  const auto parsed = parse_whole<std::int64_t>(*word);
  if (parsed && *parsed >= range.smallest && *parsed <= range.largest) return parsed;
  refuse_value(name, *word, text("an integer from ", range.smallest, " to ", range.largest));
  return std::nullopt;
}

std::optional<double> Reading::number(std::string_view name, Numbers range) {
  const std::string* word = value(name);
  if (word == nullptr) return std::nullopt;
  const auto parsed = parse_whole<double>(*word);
  if (parsed && std::isfinite(*parsed) && *parsed >= range.smallest && *parsed <= range.largest)
    return parsed;
  refuse_value(name, *word, "a number" + range_text(range.smallest, range.largest));
  return std::nullopt;
}

std::int64_t Reading::integer_or(std::string_view name, std::int64_t fallback, Integers range) {
  return integer(name, range).value_or(fallback);
}

double Reading::number_or(std::string_view name, double fallback, Numbers range) {
  return number(name, range).value_or(fallback);
}

std::int64_t Reading::required(std::string_view name, Integers range) {
  if (find(name) == nullptr) problem(text(name, " is missing"));
  return integer(name, range).value_or(range.smallest);
}

std::string Reading::word_or(std::string_view name, const std::string& fallback,
                             const std::vector<std::string>& choices) {
  const std::string* word = value(name);
  if (word == nullptr) return fallback;
  if (choices.empty() || std::ranges::find(choices, *word) != choices.end()) return *word;
  refuse_value(name, *word, "one of " + join(choices, ", "));
  return fallback;
}

std::vector<std::string> Reading::words(std::string_view name) {
  const Flag* flag = find(name);
  if (flag == nullptr) return {};
  read_.emplace(name);
  return flag->values;
}

std::string Reading::source(std::string_view name) const {
  return find(name) != nullptr ? std::string(name) : text("the default of ", name);
}

std::vector<std::string> Reading::notes() const {
  std::vector<std::string> all = notes_;
  for (const Flag& flag : flags_)
    if (!read_.contains(flag.name))
      all.push_back(text(flag.name, flag.values.empty() ? "" : " ",
                         on_one_line(join(flag.values, " ")),
                         ": has no effect beside the other flags, in Megatron-LM too"));
  return all;
}

void Reading::throw_if_any() const {
  if (problems_.empty()) return;
  throw UsageError("Megatron-LM's flags:\n  " + join(problems_, "\n  "),
                   {.hint = "docs/megatron.md lists every flag."});
}

std::string divisors_of(std::int64_t size) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t i = 1; i * i <= size; ++i) {
    if (size % i != 0) continue;
    low.push_back(i);
    if (i != size / i) high.push_back(size / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  constexpr std::size_t most = 12;
  if (low.size() <= most) return join(low, ", ");
  const std::vector<std::int64_t> first(low.begin(), low.begin() + most - 2);
  return join(first, ", ") + ", ... " + std::to_string(size);
}

}  // namespace trestle::megatron
