#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/recipe/recipe_fields.h"

// docs/recipes.md lists what the table of fields says. TRESTLE_UPDATE_DOCS=1 in the environment
// writes the list anew.
namespace trestle::train {
namespace {

const std::string path = std::string(TRESTLE_SOURCE_DIR) + "/docs/recipes.md";
const std::string begin_mark = "<!-- fields:begin -->\n";
const std::string end_mark = "<!-- fields:end -->";

std::string in_table(const std::string& words) {
  std::string out;
  for (const char letter : words) {
    if (letter == '|' || letter == '<') out += '\\';
    out += letter;
  }
  return out;
}

std::string field_tables() {
  const recipe::Recipe defaults;
  std::string out, section;
  for (const recipe::Field& field : recipe::recipe_fields()) {
    if (field.section != section) {
      section = field.section;
      out +=
          text("\n### [", section, "]\n\n| key | meaning | value | default |\n|---|---|---|---|\n");
    }
    const std::string standard = to_toml(field.get(defaults));
    const bool none = standard == "\"\"" || standard == "[]";
    out += text("| `", field.key, "` | ", in_table(field.help), " | ", in_table(describe(field)),
                " | ", none ? std::string() : "`" + standard + "`", " |\n");
  }
  return out + "\n";
}

TEST(Docs, RecipesListEveryField) {
  const std::string document = read_file(path);
  const auto begin = document.find(begin_mark);
  const auto end = document.find(end_mark);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const auto from = begin + begin_mark.size();
  const std::string shown = document.substr(from, end - from);
  if (shown != field_tables() && std::getenv("TRESTLE_UPDATE_DOCS") != nullptr) {
    write_file(path, document.substr(0, from) + field_tables() + document.substr(end));
    return;
  }
  EXPECT_EQ(shown, field_tables()) << "Run this test with TRESTLE_UPDATE_DOCS=1.";
}

}  // namespace
}  // namespace trestle::train
