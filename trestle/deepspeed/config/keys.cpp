#include "trestle/deepspeed/config/keys.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::deepspeed {

namespace {

constexpr std::size_t longest_shown = 60;

std::string cut(std::string words) {
  if (words.size() > longest_shown) words = words.substr(0, longest_shown - 3) + "...";
  return words;
}

// "'stage' in zero_optimization".
std::string json_place(std::string_view name, const std::string& path) {
  const std::string quoted = Json(name).dump(-1, ' ', true);  // escapes terminal control characters
  return text("'", cut(quoted.substr(1, quoted.size() - 2)), "'", path.empty() ? "" : " in ", path);
}

std::string json_number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return text(static_cast<std::int64_t>(value));
  return text(value);
}

std::string range_text(const Key& key) {
  constexpr double not_said = 1e15;  // larger limits are not shown
  if (key.smallest < -not_said) return "";
  if (key.largest >= not_said) return text(" of at least ", json_number_text(key.smallest));
  return text(" from ", json_number_text(key.smallest), " to ", json_number_text(key.largest));
}

std::string describe(const Key& key) {
  switch (key.type) {
    case Type::Switch:
      return "true or false";
    case Type::Integer:
      return "an integer" + range_text(key);
    case Type::Number:
      return "a number" + range_text(key);
    case Type::Pair:
      return "a list of two numbers" + range_text(key);
    default:
      return key.choices.empty() ? "a text" : "one of " + join(key.choices, ", ");
  }
}

bool in_range(const Key& key, double value) {
  return value >= key.smallest && value <= key.largest;
}

std::optional<Value> to_integer(const Json& json, const Key& key) {
  if (!json.is_number()) return std::nullopt;
  const auto value = json.get<double>();
  if (value != std::floor(value) || !in_range(key, value)) return std::nullopt;
  constexpr double too_many = 9223372036854775808.0;  // 2^63
  if (json.is_number_float() || json.is_number_unsigned()) {
    if (!(value >= -too_many && value < too_many)) {
      // The largest int64 was rounded up to 2^63 and is still valid.
      const bool largest = json.is_number_unsigned() && json.get<std::uint64_t>() == INT64_MAX;
      return largest ? std::optional<Value>(INT64_MAX) : std::nullopt;
    }
  }
  return json.is_number_float() ? static_cast<std::int64_t>(value) : json.get<std::int64_t>();
}

std::optional<Value> to_text(const Json& json, const Key& key) {
  if (!json.is_string()) return std::nullopt;
  const auto word = json.get<std::string>();
  if (key.choices.empty()) return word;
  const std::string small = small_letters(word);
  if (std::find(key.choices.begin(), key.choices.end(), small) == key.choices.end())
    return std::nullopt;
  return small;
}

std::optional<Value> json_to_value(const Json& json, const Key& key) {
  const auto number = [&](const Json& one) {
    return one.is_number() && in_range(key, one.get<double>());
  };
  switch (key.type) {
    case Type::Switch:
      return json.is_boolean() ? std::optional<Value>(json.get<bool>()) : std::nullopt;
    case Type::Integer:
      return to_integer(json, key);
    case Type::Number:
      return number(json) ? std::optional<Value>(json.get<double>()) : std::nullopt;
    case Type::Pair:
      if (!json.is_array() || json.size() != 2 || !number(json[0]) || !number(json[1]))
        return std::nullopt;
      return std::array{json[0].get<double>(), json[1].get<double>()};
    case Type::Text:
      return to_text(json, key);
    default:
      return false;  // not used
  }
}

// The setting of Hugging Face's Trainer that replaces "auto" (its documentation of DeepSpeed).
std::string trainers_value(std::string_view key) {
  struct Entry {
    std::string_view key, value;
  };
  constexpr std::array entries = {
      Entry{"train_micro_batch_size_per_gpu", "per_device_train_batch_size"},
      Entry{"gradient_accumulation_steps", "gradient_accumulation_steps"},
      Entry{"gradient_clipping", "max_grad_norm"},
      Entry{"lr", "learning_rate"},
      Entry{"warmup_max_lr", "learning_rate"},
      Entry{"warmup_num_steps", "warmup_steps"},
      Entry{"total_num_steps", "max_steps"},
      Entry{"betas", "[adam_beta1, adam_beta2]"},
      Entry{"eps", "adam_epsilon"},
      Entry{"weight_decay", "weight_decay"}};
  for (const Entry& entry : entries)
    if (entry.key == key) return text("the value of the Trainer's ", entry.value);
  if (key == "train_batch_size")
    return "the Trainer's per_device_train_batch_size x gradient_accumulation_steps x ranks";
  return "the value";
}

void read_key(const Json& json, const Key& key, const std::string& path, Reading reading) {
  const std::string where = json_place(key.name, path);
  if (json.is_string() && json.get<std::string>() == "auto") {
    reading.problems.add(text(where, " is \"auto\", which only Hugging Face's Trainer fills in. ",
                              "Write ", trainers_value(key.name), ", or leave the key out."));
    return;
  }
  if (key.read) return key.read(json);
  const std::optional<Value> value = json_to_value(json, key);
  if (!value) {
    reading.problems.add(text(where, " must be ", describe(key), ", not ", shown(json)));
    return;
  }
  if (key.only && *value != *key.only) {
    reading.problems.add(text(where, " is ", shown(json), ": ", key.why, ". Leave it out.",
                              key.nearest.empty() ? "" : " Nearest: ", key.nearest,
                              key.nearest.empty() ? "" : "."));
    return;
  }
  if (key.set) key.set(*value);
  if (!key.no_effect.empty())
    reading.config.without_effect.push_back(
        text(path, path.empty() ? "" : ".", key.name, " ", shown(json), ": ", key.no_effect));
}

template <class To, class Held = To>
Key setting(std::string name, Type type, To& to, Range range = {}) {
  Key key{
      .name = std::move(name), .type = type, .smallest = range.smallest, .largest = range.largest};
  key.set = [&to](const Value& value) { to = std::get<Held>(value); };
  return key;
}

Type json_type_of(const Value& value) {
  constexpr std::array types = {Type::Switch, Type::Integer, Type::Number, Type::Text, Type::Pair};
  return types.at(value.index());
}

}  // namespace

Key obeyed(std::string name, bool& to) { return setting(std::move(name), Type::Switch, to); }
Key obeyed(std::string name, std::optional<bool>& to) {
  return setting<std::optional<bool>, bool>(std::move(name), Type::Switch, to);
}
Key obeyed(std::string name, std::int64_t& to, Range range) {
  return setting(std::move(name), Type::Integer, to, range);
}
Key obeyed(std::string name, std::optional<std::int64_t>& to, Range range) {
  return setting<std::optional<std::int64_t>, std::int64_t>(std::move(name), Type::Integer, to,
                                                            range);
}
Key obeyed(std::string name, double& to, Range range) {
  return setting(std::move(name), Type::Number, to, range);
}
Key obeyed(std::string name, std::optional<double>& to, Range range) {
  return setting<std::optional<double>, double>(std::move(name), Type::Number, to, range);
}
Key obeyed(std::string name, std::string& to, std::vector<std::string> choices) {
  Key key = setting(std::move(name), Type::Text, to);
  key.choices = std::move(choices);
  return key;
}

Key idle(std::string name, Type type, std::string why) {
  return {.name = std::move(name), .type = type, .no_effect = std::move(why)};
}

Key only(std::string name, Value value, std::string why, std::string nearest) {
  const Type type = json_type_of(value);
  return {.name = std::move(name),
          .type = type,
          .only = std::move(value),
          .why = std::move(why),
          .nearest = std::move(nearest)};
}

Key object(std::string name, std::function<void(const Json&)> read) {
  return {.name = std::move(name), .read = std::move(read)};
}

void Problems::throw_if_any() const {
  if (!lines_.empty()) throw UsageError(join(lines_, "\n"));
}

void read_object(const Json& json, const std::string& path, const Keys& keys, Reading reading) {
  if (!json.is_object()) {
    reading.problems.add(text(path.empty() ? "the file" : "'" + path + "'",
                              " must be an object, { ... }, not ", shown(json)));
    return;
  }
  for (const auto& [name, value] : json.items()) {
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&name = name](const Key& known) { return known.name == name; });
    if (key != keys.end()) {
      if (!value.is_null()) read_key(value, *key, path, reading);
      continue;
    }
    std::vector<std::string> known;
    for (const Key& other : keys) known.push_back(other.name);
    const bool may_be_a_slip =
        name.size() <= longest_shown;  // the comparison is slow for long names
    const std::string meant = may_be_a_slip ? did_you_mean(name, known) : "";
    const std::string unknown = text("unknown key ", json_place(name, path));
    reading.problems.add(meant.empty() ? text(unknown, "; known are ", join(known, ", "))
                                       : unknown + meant);
  }
}

bool is_given(const Json& json, const char* name) {
  return json.is_object() && json.contains(name) && !json[name].is_null();
}

std::string shown(const Json& json) { return cut(json.dump(-1, ' ', true)); }

std::string small_letters(std::string_view text) {
  std::string small(text);
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return small;
}

}  // namespace trestle::deepspeed
