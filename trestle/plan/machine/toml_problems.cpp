#include "trestle/plan/machine/toml_problems.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <limits>
#include <sstream>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/units.h"

namespace trestle::plan {
namespace {

constexpr std::array<std::string_view, 3> origin_names = {"measured", "simulated", "assumed"};

}  // namespace

std::string_view to_string(Origin origin) {
  return origin_names.at(static_cast<std::size_t>(origin));
}

void TomlProblems::add(const toml::source_region& source, const std::string& what) {
  problems_.emplace_back(source.begin.line, text(toml_place(file_, source), ": ", what));
}

void TomlProblems::throw_if_any() {
  if (problems_.empty()) return;
  std::stable_sort(problems_.begin(), problems_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> lines;
  for (const auto& [line, message] : problems_) lines.push_back(message);
  throw UsageError(join(lines, "\n"));
}

std::optional<std::int64_t> TomlProblems::whole_number(const toml::node& node, std::int64_t least,
                                                       std::int64_t most) {
  const auto* number = node.as_integer();
  if (number == nullptr || number->get() < least || number->get() > most) return std::nullopt;
  return number->get();
}

std::int64_t TomlProblems::whole_number(const toml::table& table, const char* key,
                                        std::int64_t least, std::int64_t most,
                                        const std::string& where) {
  const toml::node* node = table.get(key);
  const auto number = node == nullptr ? std::nullopt : whole_number(*node, least, most);
  if (!number)
    add(node == nullptr ? table.source() : node->source(),
        text("'", key, "' in ", where, " must be a whole number from ", least, " to ", most));
  return number.value_or(least);
}

bool TomlProblems::read_origin(const toml::table& table, const std::string& where,
                               const std::vector<std::string>& more, Origin* origin,
                               std::string* from) {
  const std::size_t before = count();
  std::vector<std::string> keys = more;
  keys.insert(keys.end(), {"is", "from"});
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      add(name.source(), text("unknown key '", key, "' in ", where, did_you_mean(key, keys)));
  }
  const toml::node* is = table.get("is");
  const auto* word = is == nullptr ? nullptr : is->as_string();
  const auto* found = word == nullptr
                          ? origin_names.end()
                          : std::find(origin_names.begin(), origin_names.end(), word->get());
  if (found == origin_names.end())
    add(is == nullptr ? table.source() : is->source(),
        text(where, ": 'is' must be \"measured\", \"simulated\" or \"assumed\""));
  else
    *origin = static_cast<Origin>(found - origin_names.begin());
  const toml::node* source = table.get("from");
  const auto* words = source == nullptr ? nullptr : source->as_string();
  if (words == nullptr || trim(words->get()).empty())
    add(source == nullptr ? table.source() : source->source(),
        text(where, ": 'from' must name the figure's source"));
  else
    *from = words->get();
  return count() == before;
}

std::optional<Figure> TomlProblems::read_figure(const toml::node& node, const std::string& where,
                                                double least, double most, Unit unit) {
  const toml::table* table = node.as_table();
  if (table == nullptr) {
    add(node.source(), text(where,
                            " must be { value = ..., is = \"measured\", \"simulated\""
                            " or \"assumed\", from = \"its source\" }"));
    return std::nullopt;
  }
  Figure figure;
  if (!read_origin(*table, where, {"value", "spread"}, &figure.origin, &figure.from))
    return std::nullopt;
  const toml::node* value = table->get("value");
  if (value == nullptr) {
    add(node.source(), text(where, " has no 'value'"));
    return std::nullopt;
  }
  const auto number = number_of(*value, where, unit);
  if (!number) return std::nullopt;
  if (!(*number >= least && *number <= most)) {
    add(value->source(), text(where, " is ", *number, ", but must lie from ", least, " to ", most));
    return std::nullopt;
  }
  figure.value = *number;
  const toml::node* spread = table->get("spread");
  if (spread == nullptr) return figure;
  const auto share = spread->value<double>();
  if (!share || !(*share >= 0 && *share <= largest_number)) {
    add(spread->source(), text("'spread' of ", where, " must be a number from 0"));
    return std::nullopt;
  }
  figure.spread = *share;
  return figure;
}

std::optional<double> TomlProblems::number_of(const toml::node& node, const std::string& where,
                                              Unit unit) {
  if (const auto* v = node.as_integer()) return static_cast<double>(v->get());
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string(); v != nullptr && unit != Unit::Number) {
    try {
      return unit == Unit::Bytes ? static_cast<double>(parse_bytes(v->get()))
                                 : parse_bandwidth(v->get());
    } catch (const UsageError& error) {
      add(node.source(), text(where, ": ", error.what()));
      return std::nullopt;
    }
  }
  add(node.source(), text(where, " must be a number",
                          unit == Unit::Bytes       ? " of bytes, or \"80GB\""
                          : unit == Unit::Bandwidth ? " of bytes per second, or \"100GB/s\""
                                                    : ""));
  return std::nullopt;
}

std::vector<double> TomlProblems::numbers(const toml::table& table, const char* key,
                                          const std::string& where, double least) {
  std::vector<double> read;
  const toml::node* node = table.get(key);
  const toml::array* items = node == nullptr ? nullptr : node->as_array();
  if (items != nullptr)
    for (const toml::node& item : *items) {
      if (const auto* v = item.as_integer()) read.push_back(static_cast<double>(v->get()));
      if (const auto* v = item.as_floating_point()) read.push_back(v->get());
    }
  const bool good = items != nullptr && !read.empty() && read.size() == items->size() &&
                    std::all_of(read.begin(), read.end(),
                                [&](double v) { return v >= least && v <= largest_number; });
  if (!good)
    add(node == nullptr ? table.source() : node->source(),
        text("'", key, "' in ", where, " must be a list of numbers ",
             least > 0 ? "above 0" : "from 0"));
  return read;
}

std::optional<std::size_t> TomlProblems::word(const toml::table& table, const char* key,
                                              const std::vector<std::string>& words,
                                              const std::string& where) {
  const toml::node* node = table.get(key);
  const auto* value = node == nullptr ? nullptr : node->as_string();
  const auto found =
      value == nullptr ? words.end() : std::find(words.begin(), words.end(), value->get());
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  add(node == nullptr ? table.source() : node->source(),
      text("'", key, "' in ", where, " must be one of ", join(words, ", ")));
  return std::nullopt;
}

std::string TomlProblems::words(const toml::table& table, const char* key,
                                const std::string& where) {
  const toml::node* node = table.get(key);
  const auto* value = node == nullptr ? nullptr : node->as_string();
  if (value != nullptr && !trim(value->get()).empty()) return value->get();
  add(node == nullptr ? table.source() : node->source(),
      text("'", key, "' in ", where, " must be a text"));
  return {};
}

std::string quoted_toml(const std::string& words) {
  std::ostringstream out;
  const toml::value<std::string> value(words);
  // toml++ writes a text of several lines as it is. A reader drops a first line break, and three
  // quotes in the text end it.
  using Flags = toml::format_flags;
  if (words.find('\n') != std::string::npos)
    out << toml::toml_formatter(
        value, toml::toml_formatter::default_flags &
                   ~(Flags::allow_multi_line_strings | Flags::allow_literal_strings));
  else
    out << value;
  return out.str();
}

std::string number_toml(double value) {
  std::ostringstream out;
  out << std::setprecision(std::numeric_limits<double>::max_digits10) << value;
  const std::string digits = out.str();
  return digits.find_first_of(".e") == std::string::npos ? digits + ".0" : digits;
}

std::string list_toml(const std::vector<double>& values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(number_toml(value));
  return text("[", join(words, ", "), "]");
}

std::string origin_toml(Origin origin, const std::string& from) {
  return text("is = \"", to_string(origin), "\", from = ", quoted_toml(from));
}

std::string figure_toml(const Figure& figure) {
  return text(
      "{ value = ", number_toml(figure.value), ", ", origin_toml(figure.origin, figure.from),
      figure.spread > 0 ? text(", spread = ", number_toml(figure.spread)) : std::string(), " }");
}

}  // namespace trestle::plan
