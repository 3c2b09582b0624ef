#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trestle/recipe/deepspeed_config.h"

// How an object of DeepSpeed's JSON is read by a list of its keys. Inside of recipe.
namespace trestle::recipe::deepspeed {

using Json = nlohmann::ordered_json;
using Value = std::variant<bool, std::int64_t, double, std::string, std::array<double, 2>>;

enum class Type { Switch, Integer, Number, Text, Pair, Anything };

struct Key {
  std::string name;
  Type type = Type::Anything;
  double smallest = -1e300, largest = 1e300;  // of numbers
  std::vector<std::string> choices = {};      // of texts, in small letters; empty: any
  std::function<void(const Value&)> set = {};
  std::string no_effect = {};                  // why it has none
  std::optional<Value> only = {};              // another value is refused,
  std::string why = {};                        // for this reason
  std::function<void(const Json&)> read = {};  // instead of all that: an object of its own
};
using Keys = std::vector<Key>;

struct Range {
  double smallest = -1e300, largest = 1e300;
};
inline constexpr double no_limit = 9.2e18;

// What goes into the configuration. Integers are taken as 500000000 or 5e8.
Key obeyed(std::string name, bool& to);
Key obeyed(std::string name, std::optional<bool>& to);
Key obeyed(std::string name, std::int64_t& to, Range range);
Key obeyed(std::string name, std::optional<std::int64_t>& to, Range range);
Key obeyed(std::string name, double& to, Range range);
Key obeyed(std::string name, std::optional<double>& to, Range range);
Key obeyed(std::string name, std::string& to, std::vector<std::string> choices);
// What is checked and changes nothing, for this reason.
Key idle(std::string name, Type type, std::string why);
// What may only be this, for the reason that is given.
Key only(std::string name, Value value, std::string why);
Key object(std::string name, std::function<void(const Json&)> read);

// What is wrong with a file, all of it at once.
class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}

  void add(std::string_view what) { lines_.push_back(file_ + ": " + std::string(what)); }
  void throw_if_any() const;  // UsageError

 private:
  std::string file_;
  std::vector<std::string> lines_;
};

struct Reading {
  DeepspeedConfig& config;
  Problems& problems;
};

// Reads the object that stands at `path` ("zero_optimization"; "" is the file itself). A key that is
// null counts as left out.
void read_object(const Json& json, const std::string& path, const Keys& keys, Reading reading);

// Whether an object has this key, and not as null.
bool is_given(const Json& json, const char* name);

// A value as the file has it, on one line, cut where it is long.
std::string shown(const Json& json);

// The text in small letters.
std::string small_letters(std::string_view text);

}  // namespace trestle::recipe::deepspeed
