#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/field_help.h"

// docs/recipes.md lists the tables of fields and data sets. TRESTLE_UPDATE_DOCS=1 in the
// environment rewrites the lists.
namespace trestle {
namespace {

const std::string path = std::string(TRESTLE_SOURCE_DIR) + "/docs/recipes.md";

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
    const std::string standard = recipe::to_toml(field.get(defaults));
    const bool none = standard == "\"\"" || standard == "[]";
    out +=
        text("| `", field.key, "` | ", in_table(train::help_of(field)), " | ",
             in_table(describe(field)), " | ", none ? std::string() : "`" + standard + "`", " |\n");
  }
  return out + "\n";
}

std::string data_set_table() {
  std::string out = "\n| name | data | location | loss | metric |\n|---|---|---|---|---|\n";
  for (const train::DataSet& set : train::data_sets())
    out += text("| `", set.name, "` | ", set.summary, " | ",
                set.paths.empty() ? "no files" : "`" + join(set.paths, "`, `") + "`", " | `",
                set.loss, "` | `", set.metric, "` |\n");
  return out + "\n";
}

// Expects `wanted` between the marks <!-- name:begin --> and <!-- name:end -->.
void expect_list(const std::string& name, const std::string& wanted) {
  const std::string begin_mark = text("<!-- ", name, ":begin -->\n");
  const std::string document = read_file(path);
  const auto begin = document.find(begin_mark);
  const auto end = document.find(text("<!-- ", name, ":end -->"));
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const auto from = begin + begin_mark.size();
  const std::string shown = document.substr(from, end - from);
  if (shown != wanted && std::getenv("TRESTLE_UPDATE_DOCS") != nullptr) {
    write_file(path, document.substr(0, from) + wanted + document.substr(end));
    return;
  }
  EXPECT_EQ(shown, wanted) << "Run this test with TRESTLE_UPDATE_DOCS=1.";
}

TEST(Docs, RecipesListEveryField) { expect_list("fields", field_tables()); }

TEST(Docs, RecipesListEveryDataSet) { expect_list("data_sets", data_set_table()); }

}  // namespace
}  // namespace trestle
