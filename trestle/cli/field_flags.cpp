#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/cli/verbs.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/field_help.h"

namespace trestle::cli {

namespace {

// Names that fields have in other programs and in other verbs.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> also_known_as = {
    {{"devices.use", "--devices"},
     {"optimizer.learning_rate", "--lr"},
     {"train.batch", "--batch-size"},
     {"model.name", "--model"}}};

// "--train.epochs,--epochs", and the field's other names.
std::string flags_of(const recipe::Field& field) {
  std::string flags = "--" + field.name();
  if (recipe::key_is_unique(field)) {
    flags += ",--" + field.key;
    std::string dashed = field.key;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (dashed != field.key) flags += ",--" + dashed;
  }
  for (const auto& [name, flag] : also_known_as)
    if (field.name() == name) flags += text(",", flag);
  return flags;
}

}  // namespace

void add_field_flags(Verb verb, FieldChanges& changes, const RunOptions& options,
                     const std::vector<std::string>& only) {
  const recipe::Recipe defaults;
  for (const recipe::Field& field : recipe::recipe_fields()) {
    if (!only.empty() && std::ranges::find(only, field.name()) == only.end()) continue;
    const std::string standard = recipe::to_toml(field.get(defaults));
    std::string help = train::help_of(field, user_parts_of(options)) + " (" + describe(field);
    if (only.empty() && standard != "\"\"" && standard != "[]") help += "; default " + standard;
    verb.add(
            flags_of(field),
            [&changes, name = field.name()](const std::string& value) {
              changes.emplace_back(name, value);
            },
            help + ")")
        .group(field_group(field.section))
        .type("");
  }
}

}  // namespace trestle::cli
