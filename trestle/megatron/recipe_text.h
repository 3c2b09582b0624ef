#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/recipe/recipe_fields.h"

// The text of a recipe, with comments. Not installed.
namespace trestle::megatron {

class RecipeText {
 public:
  void comment(std::string_view line);
  void begin(std::string section);  // later keys belong to it
  // key = value  # why
  void set(std::string_view key, const recipe::FieldValue& value, std::string_view why);

  const std::string& text() const { return text_; }
  // Values that a recipe does not allow, each as a message.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::string section_, text_;
  bool is_written_ = false;  // the section's head
  std::vector<std::string> problems_;
};

}  // namespace trestle::megatron
