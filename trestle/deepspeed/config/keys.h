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

#include "trestle/deepspeed/config/config.h"

// Reads an object of DeepSpeed's JSON by a list of its keys. Not installed.
namespace trestle::deepspeed {

using Json = nlohmann::ordered_json;
using Value = std::variant<bool, std::int64_t, double, std::string, std::array<double, 2>>;

enum class Type { Switch, Integer, Number, Text, Pair, Anything };

struct Key {
  std::string name;
  Type type = Type::Anything;
  double smallest = -1e300, largest = 1e300;  // for numbers
  std::vector<std::string> choices = {};      // for texts, in lower case; empty: any
  std::function<void(const Value&)> set = {};
  std::string no_effect = {};                  // the reason, if the key has no effect
  std::optional<Value> only = {};              // any other value is an error,
  std::string why = {};                        // with this reason
  std::string nearest = {};                    // and what comes nearest to it
  std::function<void(const Json&)> read = {};  // reads a nested object instead
};
using Keys = std::vector<Key>;

struct Range {
  double smallest = -1e300, largest = 1e300;
};
inline constexpr double no_limit = 9.2e18;

// A key that is stored in the configuration. Integers may be written as 500000000 or 5e8.
Key obeyed(std::string name, bool& to);
Key obeyed(std::string name, std::optional<bool>& to);
Key obeyed(std::string name, std::int64_t& to, Range range);
Key obeyed(std::string name, std::optional<std::int64_t>& to, Range range);
Key obeyed(std::string name, double& to, Range range);
Key obeyed(std::string name, std::optional<double>& to, Range range);
Key obeyed(std::string name, std::string& to, std::vector<std::string> choices);
// A key that is checked and has no effect, with the reason.
Key idle(std::string name, Type type, std::string why);
// A key that must have this value, with the reason, and with what comes nearest to other values.
Key only(std::string name, Value value, std::string why, std::string nearest = {});
Key object(std::string name, std::function<void(const Json&)> read);

// Collects all problems of a file.
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

// Reads the object at `path` ("zero_optimization"; "" is the whole file). A key whose value is null
// counts as missing.
void read_object(const Json& json, const std::string& path, const Keys& keys, Reading reading);

// Whether an object has this key with a value other than null.
bool is_given(const Json& json, const char* name);

// A value as in the file, on one line, truncated if it is long.
std::string shown(const Json& json);

// The text in lower case.
std::string small_letters(std::string_view text);

}  // namespace trestle::deepspeed
