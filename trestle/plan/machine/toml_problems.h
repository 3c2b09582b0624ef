#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/base/toml_parser.h"
#include "trestle/plan/machine/figure.h"

// Inside of plan/machine. Not installed.
namespace trestle::plan {

enum class Unit { Number, Bytes, Bandwidth };

// Reads values of a machine file, and collects every problem with its line.
class TomlProblems {
 public:
  explicit TomlProblems(std::string file) : file_(std::move(file)) {}

  void add(const toml::source_region& source, const std::string& what);
  std::size_t count() const { return problems_.size(); }
  // Throws UsageError with all problems in the order of their lines, if there are any.
  void throw_if_any();

  static std::optional<std::int64_t> whole_number(const toml::node& node, std::int64_t least,
                                                  std::int64_t most);
  // The same for a key that must be there.
  std::int64_t whole_number(const toml::table& table, const char* key, std::int64_t least,
                            std::int64_t most, const std::string& where);
  // The keys 'is' and 'from'. Other keys than these and `more` are refused.
  bool read_origin(const toml::table& table, const std::string& where,
                   const std::vector<std::string>& more, Origin* origin, std::string* from);
  // { value = 1.5, is = "measured", from = "..." }, and perhaps spread. The value lies from `least`
  // to `most`; with a unit it may be a text such as "80GB" or "100GB/s".
  std::optional<Figure> read_figure(const toml::node& node, const std::string& where, double least,
                                    double most, Unit unit = Unit::Number);
  // A list of numbers from `least`.
  std::vector<double> numbers(const toml::table& table, const char* key, const std::string& where,
                              double least);
  // The place of the key's word in `words`; nothing after a problem.
  std::optional<std::size_t> word(const toml::table& table, const char* key,
                                  const std::vector<std::string>& words, const std::string& where);
  // A text that is not empty.
  std::string words(const toml::table& table, const char* key, const std::string& where);

 private:
  std::optional<double> number_of(const toml::node& node, const std::string& where, Unit unit);

  std::string file_;
  std::vector<std::pair<std::uint32_t, std::string>> problems_;
};

// Values as a machine file writes them.
std::string quoted_toml(const std::string& words);
std::string number_toml(double value);
std::string list_toml(const std::vector<double>& values);
std::string origin_toml(Origin origin, const std::string& from);
// { value = 1.5, is = "measured", from = "...", spread = 0.1 }
std::string figure_toml(const Figure& figure);

inline constexpr double smallest_number = 1e-12;
inline constexpr double largest_number = 1e30;

}  // namespace trestle::plan
