#include "trestle/train/data_set.h"

#include <system_error>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const DataSet& set : data_sets()) names.push_back(set.name);
  return names;
}

}  // namespace

MakingFolder::MakingFolder(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) throw FileError(text("cannot be made: ", error.message()), {.file = path_.string()});
  lock_ = FileLock::try_lock(path_ / ".lock");
  if (!lock_)
    throw StateError(text(path_.string(), ": another process is making these data"),
                     {.hint = "Wait until it has ended, then start again."});
  std::filesystem::remove_all(content(), error);  // of one that was interrupted
}

MakingFolder::~MakingFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void move_into_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error)
    throw FileError(text("cannot be moved to ", to.string(), ": ", error.message()),
                    {.file = from.string()});
}

const std::vector<DataSet>& data_sets() {
  static const std::vector<DataSet> all = {carvana_set(), mnist_set()};
  return all;
}

const DataSet& find_data_set(std::string_view name) {
  return choose("data set", name, data_sets());
}

std::vector<std::string> problems_of_data(const recipe::Recipe& recipe) {
  if (recipe.data.name.empty())
    return {text("no data: give 'name' in [data], one of ", data_set_names())};
  const DataSet& set = find_data_set(recipe.data.name);
  std::vector<std::string> missing;
  for (const std::string& key : set.paths) {
    const recipe::FieldValue value = recipe::find_field("data." + key)->get(recipe);
    if (std::get<std::string>(value).empty()) missing.push_back("'" + key + "'");
  }
  if (missing.empty()) return {};
  return {text(set.name, " needs ", join(missing, " and "), " in [data]")};
}

std::string data_set_names() { return join(names(), ", "); }

}  // namespace trestle::train
