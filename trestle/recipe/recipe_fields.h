#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trestle/recipe/recipe.h"

// The table of a recipe's fields. TOML, command-line flags, --help and the resolved recipe use it.
namespace trestle::recipe {

using FieldValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                std::vector<std::string>>;

enum class FieldType { Switch, Integer, Number, Text, Integers, Texts };

struct Field {
  enum class OnResume {
    MustBeEqual,
    MayChange,       // results stay equal to rounding, or differ as documented
    ChangesNumbers,  // may change, and results will differ from there on
  };

  std::string section;
  std::string key;
  FieldType type;
  std::string help;          // one line; train/field_help.h appends the names of a table
  double smallest = -1e300;  // for numbers
  double largest = 1e300;
  std::vector<std::string> choices;  // for texts; empty = any
  std::function<FieldValue(const Recipe&)> get;
  std::function<void(Recipe&, const FieldValue&)> set;  // with a value from check_value()
  OnResume on_resume = OnResume::MustBeEqual;

  std::string name() const { return section + "." + key; }
};

const std::vector<Field>& recipe_fields();

// Finds a field by "section.key", or by the key alone if only one section has it. nullptr if there
// is none.
const Field* find_field(std::string_view name);

// The field that other programs call `word`: "train.batch" for batch_size and batchsize. nullptr if
// the name is not known.
const Field* find_field_of_other_programs(std::string_view word);

// True if no other section has this key, so that its flag needs no section.
bool key_is_unique(const Field& field);

// The allowed values, for messages and --help: "an integer from 1 to 256", "one of reverse,
// forward".
std::string describe(const Field& field);

// Converts the value to the field's type: an integer to a number, one text to a list. Throws
// UsageError with the allowed values.
FieldValue check_value(const Field& field, FieldValue value);

// Parses the text of a flag: "3", "true", "13,9", "[13, 9]".
FieldValue parse_value(const Field& field, std::string_view text);

// Formats as TOML: 3, true, "text", [13, 9].
std::string to_toml(const FieldValue& value);

}  // namespace trestle::recipe
