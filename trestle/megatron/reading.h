#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/megatron/flags.h"

// Reads the values of flags, and collects all faults. Not installed.
namespace trestle::megatron {

class Reading {
 public:
  // Faults of the flags themselves: unknown, refused, repeated, or with a wrong number of values.
  explicit Reading(std::vector<Flag> flags);

  // The numbers of counts and sizes that a recipe takes.
  static constexpr std::int64_t many = 1'000'000'000;
  struct Integers {
    std::int64_t smallest = 1, largest = many;
  };
  struct Numbers {
    double smallest = 0, largest = 1e9;
  };

  // Whether a flag was given. Each of these functions marks it as read.
  bool has(std::string_view name);
  // Nothing for a flag that was not given or whose value is a fault.
  std::optional<std::int64_t> integer(std::string_view name, Integers range);
  std::optional<double> number(std::string_view name, Numbers range);
  std::int64_t integer_or(std::string_view name, std::int64_t fallback, Integers range);
  double number_or(std::string_view name, double fallback, Numbers range);
  // The same, and a flag that was not given is a fault; `needs` ends its message.
  std::int64_t required(std::string_view name, Integers range);
  // One of the choices; all texts if there are none.
  std::string word_or(std::string_view name, const std::string& fallback,
                      const std::vector<std::string>& choices = {});
  std::vector<std::string> words(std::string_view name);

  // "--lr", or "the default of --lr" if it was not given: the comment of a recipe's key.
  std::string source(std::string_view name) const;

  // A fault that is reported already is not reported twice.
  void problem(std::string what);
  // A comment at the end of the recipe: "--use-flash-attn: attention = ...".
  void note(std::string what) { notes_.push_back(std::move(what)); }
  // The notes, with those of flags that no key of the recipe depends on.
  std::vector<std::string> notes() const;
  void throw_if_any() const;  // UsageError with all faults

 private:
  const Flag* find(std::string_view name) const;
  const std::string* value(std::string_view name);  // marks it as read; null without one
  void check(const Flag& flag);
  void refuse_value(std::string_view name, const std::string& value, const std::string& allowed);

  std::vector<Flag> flags_;
  std::set<std::string, std::less<>> read_;
  std::vector<std::string> problems_, notes_;
};

// "1, 2, 4, 8": the divisors of a size, for messages. A long list has its middle left out.
std::string divisors_of(std::int64_t size);

}  // namespace trestle::megatron
