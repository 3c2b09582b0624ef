#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trestle/recipe/recipe.h"

// The one table of a recipe's fields: reading TOML, command-line flags, --help and
// the written recipe all go by it.
namespace trestle::recipe {

using FieldValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                std::vector<std::string>>;

enum class FieldType { Switch, Integer, Number, Text, Integers, Texts };

struct Field {
  enum class OnResume {
    MustBeEqual,
    MayChange,       // the numbers stay as they are (to rounding), or it says itself what changes
    ChangesNumbers,  // may change too; the run is then another one from there on
  };

  std::string section;
  std::string key;
  FieldType type;
  std::string help;          // one line; train/field_help.h adds the names that a table knows
  double smallest = -1e300;  // of numbers
  double largest = 1e300;
  std::vector<std::string> choices;  // of texts; empty = any
  std::function<FieldValue(const Recipe&)> get;
  std::function<void(Recipe&, const FieldValue&)> set;  // with a value that check_value() returned
  OnResume on_resume = OnResume::MustBeEqual;

  std::string name() const { return section + "." + key; }
};

const std::vector<Field>& recipe_fields();

// By "section.key", or by the key alone where only one section has it. nullptr if there is none.
const Field* find_field(std::string_view name);

// True if no other section has this key, so that the flag may be written short.
bool key_is_unique(const Field& field);

// "an integer from 1 to 256", "one of reverse, forward": for messages and --help.
std::string describe(const Field& field);

// The value in the field's own type (an integer is a number, one text a list of one). Throws
// UsageError that says what was expected; the caller knows the place.
FieldValue check_value(const Field& field, FieldValue value);

// What a flag's text means: "3", "true", "13,9", "[13, 9]".
FieldValue parse_value(const Field& field, std::string_view text);

// As TOML: 3, true, "text", [13, 9].
std::string to_toml(const FieldValue& value);

}  // namespace trestle::recipe
