#include "trestle/megatron/recipe_text.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::megatron {

void RecipeText::comment(std::string_view line) {
  text_ += line.empty() ? "#\n" : trestle::text("# ", line, "\n");
}

void RecipeText::begin(std::string section) {
  section_ = std::move(section);
  is_written_ = false;
}

void RecipeText::set(std::string_view key, const recipe::FieldValue& value, std::string_view why) {
  constexpr std::size_t comments_begin = 32;
  try {
    recipe::check_value(*recipe::find_field(trestle::text(section_, ".", key)), value);
  } catch (const UsageError& error) {
    problems_.push_back(trestle::text(why, ": in a recipe, ", error.what()));
  }
  if (!is_written_) text_ += trestle::text("\n[", section_, "]\n");
  is_written_ = true;
  std::string line = trestle::text(key, " = ", recipe::to_toml(value));
  if (!why.empty()) {
    line.resize(std::max(line.size() + 2, comments_begin), ' ');
    line += trestle::text("# ", why);
  }
  text_ += line + "\n";
}

}  // namespace trestle::megatron
