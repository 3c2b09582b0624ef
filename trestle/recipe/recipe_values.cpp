#include <charconv>
#include <cmath>
#include <cstdio>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::recipe {

namespace {

std::string number_text(double value) {
  char shortest[64];
  const auto [end, error] = std::to_chars(shortest, shortest + sizeof shortest, value);
  std::string word(shortest, end);
  // TOML tells 1 and 1.0 apart.
  if (word.find_first_of(".en") == std::string::npos) word += ".0";
  return word;
}

std::string toml_text(std::string_view word) {
  std::string out = "\"";
  for (const char c : word) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class T>
std::string list_text(const std::vector<T>& items) {
  std::vector<std::string> words;
  for (const T& item : items) words.push_back(to_toml(FieldValue(item)));
  return "[" + join(words, ", ") + "]";
}

// As to_toml(), but a list of one text stays a list.
std::string toml_as_written(const FieldValue& value) {
  const auto* words = std::get_if<std::vector<std::string>>(&value);
  return words != nullptr ? list_text(*words) : to_toml(value);
}

// ": write use = "cpu"" for use = ["cpu"].
std::string text_instead(const Field& field, const FieldValue& value) {
  const auto* words = std::get_if<std::vector<std::string>>(&value);
  const bool one_text = words != nullptr && field.type == FieldType::Text && !words->empty();
  if (!one_text || (words->size() > 1 && field.name() != "devices.use")) return "";
  return text(": write ", field.key, " = ", toml_text(join(*words, ",")));
}

// "1", "1000000000", "1e-06", "9e+18": counts are written out.
std::string bound(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? text(static_cast<std::int64_t>(value))
             : text(value);
}

void check_range(const Field& field, double value) {
  if (!(value >= field.smallest && value <= field.largest))
    throw UsageError(text("'", field.key, "' in [", field.section, "] must be ", describe(field),
                          ", not ",
                          value == std::floor(value) ? bound(value) : number_text(value)));
}

// TOML has no other: the run's own recipe.toml could not be read back.
void check_utf8(const Field& field, const std::string& value) {
  if (is_utf8(value)) return;
  throw UsageError(
      text("'", field.key, "' in [", field.section, "] is not UTF-8: '", value, "'"),
      {.hint = "A recipe is UTF-8. If it is the name of a file or folder, rename it."});
}

void check_text(const Field& field, const std::string& value) {
  check_utf8(field, value);
  if (field.choices.empty()) return;
  for (const std::string& choice : field.choices)
    if (choice == value) return;
  throw UsageError(text("'", field.key, "' in [", field.section, "] must be ", describe(field),
                        ", not '", value, "'", did_you_mean(value, field.choices)));
}

template <class T>
T parse_number(const Field& field, std::string_view word) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size())
    throw UsageError(text("'", field.key, "' in [", field.section, "] must be ", describe(field),
                          ", not '", word, "'"));
  return value;
}

}  // namespace

std::string describe(const Field& field) {
  if (!field.choices.empty()) {
    std::vector<std::string> words;
    for (const std::string& choice : field.choices)
      if (!choice.empty()) words.push_back(choice);
    return text(field.type == FieldType::Texts ? "one or more of " : "one of ", join(words, ", "));
  }
  const std::string range = text(" from ", bound(field.smallest), " to ", bound(field.largest));
  switch (field.type) {
    case FieldType::Switch:
      return "true or false";
    case FieldType::Integer:
      return "an integer" + range;
    case FieldType::Number:
      return "a number" + range;
    case FieldType::Text:
      return "text";
    case FieldType::Integers:
      return "a list of integers" + range;
    case FieldType::Texts:
      return "a list of texts";
  }
  return "";
}

FieldValue check_value(const Field& field, FieldValue value) {
  if (field.type == FieldType::Number && std::holds_alternative<std::int64_t>(value))
    value = static_cast<double>(std::get<std::int64_t>(value));
  if (field.type == FieldType::Texts && std::holds_alternative<std::string>(value))
    value = std::vector<std::string>{std::get<std::string>(value)};
  // An empty list has no type of its own.
  if (field.type == FieldType::Texts && value == FieldValue(std::vector<std::int64_t>{}))
    value = std::vector<std::string>{};
  if (value.index() != static_cast<std::size_t>(field.type))
    throw UsageError(text("'", field.key, "' in [", field.section, "] must be ", describe(field),
                          ", not ", toml_as_written(value), text_instead(field, value)));
  if (const auto* integer = std::get_if<std::int64_t>(&value))
    check_range(field, static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) check_range(field, *number);
  if (const auto* word = std::get_if<std::string>(&value)) check_text(field, *word);
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&value))
    for (const std::int64_t integer : *integers) check_range(field, static_cast<double>(integer));
  if (const auto* words = std::get_if<std::vector<std::string>>(&value))
    for (const std::string& word : *words) check_text(field, word);
  return value;
}

FieldValue parse_value(const Field& field, std::string_view text_given) {
  const std::string word = trim(text_given);
  std::string inside = word;
  if (inside.size() >= 2 && inside.front() == '[' && inside.back() == ']')
    inside = inside.substr(1, inside.size() - 2);
  std::vector<std::string> items;
  if (!trim(inside).empty())
    for (const std::string& item : split(inside, ',')) {
      std::string bare = trim(item);
      if (bare.size() >= 2 && bare.front() == '"' && bare.back() == '"')
        bare = bare.substr(1, bare.size() - 2);
      items.push_back(bare);
    }
  switch (field.type) {
    case FieldType::Switch:
      if (word == "true" || word == "1" || word == "on" || word == "yes") return true;
      if (word == "false" || word == "0" || word == "off" || word == "no") return false;
      throw UsageError(text("'", field.key, "' in [", field.section,
                            "] must be true or false, not '", word, "'"));
    case FieldType::Integer:
      return check_value(field, parse_number<std::int64_t>(field, word));
    case FieldType::Number:
      return check_value(field, parse_number<double>(field, word));
    case FieldType::Text:
      return check_value(field, std::string(text_given));
    case FieldType::Texts:
      return check_value(field, items);
    case FieldType::Integers:
      break;
  }
  std::vector<std::int64_t> integers;
  for (const std::string& item : items) integers.push_back(parse_number<std::int64_t>(field, item));
  return check_value(field, integers);
}

std::string to_toml(const FieldValue& value) {
  switch (static_cast<FieldType>(value.index())) {
    case FieldType::Switch:
      return std::get<bool>(value) ? "true" : "false";
    case FieldType::Integer:
      return text(std::get<std::int64_t>(value));
    case FieldType::Number:
      return number_text(std::get<double>(value));
    case FieldType::Text:
      return toml_text(std::get<std::string>(value));
    case FieldType::Integers:
      return list_text(std::get<std::vector<std::int64_t>>(value));
    case FieldType::Texts: {
      const auto& words = std::get<std::vector<std::string>>(value);
      return words.size() == 1 ? toml_text(words[0]) : list_text(words);
    }
  }
  return "";
}

}  // namespace trestle::recipe
