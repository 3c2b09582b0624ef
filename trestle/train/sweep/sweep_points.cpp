#include "trestle/train/sweep/sweep_points.h"

#include <algorithm>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::train {

namespace {

using recipe::FieldType;

const recipe::Field& find(const std::string& key) {
  if (const recipe::Field* field = recipe::find_field(key)) return *field;
  std::vector<std::string> names;
  std::vector<std::string> same_key;
  for (const recipe::Field& known : recipe::recipe_fields()) {
    names.push_back(known.name());
    if (known.key == key) same_key.push_back(known.name());
  }
  if (!same_key.empty())
    throw UsageError(text("several sections have a field '", key, "'"),
                     {.hint = text("Write ", join(same_key, " or "), ".")});
  if (const recipe::Field* other =
          recipe::find_field_of_other_programs(key.substr(key.find('.') + 1)))
    throw UsageError(
        text("recipes have no field '", key, "'; did you mean '", other->name(), "'?"));
  std::string meant = did_you_mean(key, names);
  if (meant.empty()) {  // perhaps the key without its section
    std::vector<std::string> keys;
    for (const recipe::Field& known : recipe::recipe_fields()) keys.push_back(known.key);
    meant = did_you_mean(key, keys);
  }
  throw UsageError(text("recipes have no field '", key, "'", meant));
}

std::vector<std::string> values_of(const recipe::Field& field, const std::string& words) {
  if (words.find(';') != std::string::npos) return split(words, ';');
  if (field.type == FieldType::Integers || field.type == FieldType::Texts) return {words};
  return split(words, ',');
}

// Removes the quotes that only TOML needs.
std::string plain(const recipe::FieldValue& value) {
  const auto* word = std::get_if<std::string>(&value);
  const auto* words = std::get_if<std::vector<std::string>>(&value);
  if (words != nullptr && words->size() == 1) word = words->data();
  return word != nullptr ? *word : recipe::to_toml(value);
}

// Limits the number of points: a typing mistake ("batch=1,2,...,3000" for two fields) must not use
// up the memory.
void check_count(const std::vector<recipe::Recipe>& recipes, const std::vector<SweepAxis>& axes) {
  constexpr std::int64_t most = 10'000;
  constexpr std::int64_t countless = 1'000'000'000'000;
  std::int64_t count = std::ssize(recipes);
  for (const SweepAxis& axis : axes) count = std::min(count, countless) * std::ssize(axis.values);
  if (count > most)
    throw UsageError(
        text("all combinations of these values are ", format_count(count), " points"),
        {.hint = text("A sweep has at most ", format_count(most), ": give fewer values.")});
}

// A sweep measures each run in one process, where the keys of [mesh] have no ranks to lay out.
void refuse_ranks(const recipe::Recipe& recipe) {
  static const recipe::Recipe standard;
  for (const recipe::Field& field : recipe::recipe_fields()) {
    if (field.section != "mesh" || field.get(recipe) == field.get(standard)) continue;
    if (field.key == "pipeline" && recipe.mesh.pipeline == 1) continue;
    throw UsageError(text("'", field.key, "' = ", recipe::to_toml(field.get(recipe)),
                          " in [mesh] needs ranks, and a sweep measures in one process"),
                     {.hint = "Leave it out. `trestle train` trains on ranks, and `trestle levels` "
                              "compares ways to shard the training state."});
  }
}

// The text before the sign and the text behind it.
std::pair<const recipe::Field&, std::string> key_and_values(std::string_view words,
                                                            std::string_view form) {
  const auto equals = words.find('=');
  if (equals == std::string_view::npos)
    throw UsageError(text("'", words, "' is not ", form),
                     {.hint = "For example pipeline.split_size=20."});
  return {find(trim(words.substr(0, equals))), std::string(words.substr(equals + 1))};
}

}  // namespace

std::pair<std::string, std::string> parse_setting(std::string_view words) {
  const auto [field, value] = key_and_values(words, "KEY=VALUE");
  return {field.name(), trim(value)};
}

std::string set_field(recipe::Recipe& recipe, std::string_view words) {
  const auto [name, value] = parse_setting(words);
  recipe::set_field(recipe, name, value);
  return name;
}

SweepAxis parse_axis(std::string_view words) {
  const auto [field, values] = key_and_values(words, "KEY=VALUE,VALUE,...");
  SweepAxis axis{.key = field.name(),
                 .values = {},
                 .is_number = field.type == FieldType::Integer || field.type == FieldType::Number};
  for (const std::string& word : values_of(field, values)) {
    if (trim(word).empty())
      throw UsageError(text("'", words, "' has an empty value"),
                       {.hint = "Separate values by single commas."});
    const std::string value = plain(recipe::parse_value(field, trim(word)));
    if (std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end())
      throw UsageError(text("'", words, "' has the value ", value, " twice"));
    axis.values.push_back(value);
  }
  return axis;
}

std::vector<SweepPoint> sweep_points(const std::vector<recipe::Recipe>& recipes,
                                     const std::vector<SweepAxis>& axes) {
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (axes[i].key == axes[k].key)
        throw UsageError(text("'", axes[i].key, "' is swept twice"),
                         {.hint = "Give all its values together."});
  for (std::size_t i = 0; i < recipes.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (recipes[i].name == recipes[k].name)
        throw UsageError(text("two recipes are called '", recipes[i].name, "'"),
                         {.hint = "Give one of the files another name."});
  check_count(recipes, axes);
  std::vector<SweepPoint> points;
  for (const recipe::Recipe& recipe : recipes) points.push_back({recipe, {}});
  for (const SweepAxis& axis : axes) {
    std::vector<SweepPoint> finer;
    for (const SweepPoint& point : points)
      for (const std::string& value : axis.values) {
        SweepPoint next = point;
        recipe::set_field(next.recipe, axis.key, value);
        next.values.push_back(value);
        finer.push_back(std::move(next));
      }
    points = std::move(finer);
  }
  for (const SweepPoint& point : points) {
    try {
      refuse_ranks(point.recipe);
      recipe::check_recipe(point.recipe);
    } catch (Error& error) {
      error.add_context("at " + name_of(point, axes, RecipeName::Show));
      throw;
    }
  }
  return points;
}

std::string name_of(const SweepPoint& point, const std::vector<SweepAxis>& axes,
                    RecipeName recipe) {
  std::vector<std::string> parts;
  if (recipe == RecipeName::Show || axes.empty()) parts.push_back(point.recipe.name);
  for (std::size_t i = 0; i < axes.size(); ++i)
    parts.push_back(text(axes[i].key, " = ", point.values[i]));
  return join(parts, " · ");
}

}  // namespace trestle::train
