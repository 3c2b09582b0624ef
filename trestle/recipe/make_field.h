#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trestle/recipe/recipe_fields.h"

// Makes the entries of the table of fields from members of Recipe. Internal to trestle/recipe.
namespace trestle::recipe {

using OnResume = Field::OnResume;

template <class T>
constexpr FieldType field_type_of() {
  if constexpr (std::is_same_v<T, bool>) return FieldType::Switch;
  if constexpr (std::is_same_v<T, std::int64_t>) return FieldType::Integer;
  if constexpr (std::is_same_v<T, double>) return FieldType::Number;
  if constexpr (std::is_same_v<T, std::string>) return FieldType::Text;
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return FieldType::Integers;
  return FieldType::Texts;
}

struct Limits {
  double smallest = -1e300;
  double largest = 1e300;
  std::vector<std::string> choices = {};
  OnResume on_resume = OnResume::MustBeEqual;
};

template <class Section, class T>
Field field(Section Recipe::*section, std::string section_name, T Section::*member, std::string key,
            std::string help, Limits limits = {}) {
  return {std::move(section_name),
          std::move(key),
          field_type_of<T>(),
          std::move(help),
          limits.smallest,
          limits.largest,
          std::move(limits.choices),
          [=](const Recipe& recipe) -> FieldValue { return recipe.*section.*member; },
          [=](Recipe& recipe, const FieldValue& value) {
            recipe.*section.*member = std::get<T>(value);
          },
          limits.on_resume};
}

inline constexpr double many = 1e9;

// The fields of language models: the sections [transformer] and [adapters], and the keys of [data]
// for token files.
void add_transformer_fields(std::vector<Field>& fields);
void add_adapter_fields(std::vector<Field>& fields);
void add_token_fields(std::vector<Field>& fields);

}  // namespace trestle::recipe
