#include "trestle/train/run_folder.h"

#include <cstdio>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace fs = std::filesystem;

fs::path RunFolder::picture(std::int64_t epoch) const {
  char name[32];
  std::snprintf(name, sizeof name, "epoch_%03lld.png", static_cast<long long>(epoch));
  return path / "pictures" / name;
}

RunFolder make_run_folder(const recipe::Recipe& recipe) {
  const fs::path runs = recipe.train.runs;
  std::error_code error;
  fs::create_directories(runs, error);
  RunFolder folder{runs / recipe.name};
  // create_directory() says whether it was us who made it, so two runs that
  // start at once get a folder each.
  for (int number = 2; !error && !fs::create_directory(folder.path, error); ++number)
    folder.path = runs / text(recipe.name, "_", number);
  if (!error) fs::create_directories(folder.path / "pictures", error);
  if (error)
    throw FileError(text("the run's folder cannot be made: ", error.message()),
                    {.file = folder.path.string()});
  write_file(folder.recipe(), to_toml(recipe));
  return folder;
}

RunFolder open_run_folder(const fs::path& path) {
  RunFolder folder{path.has_filename() ? path : path.parent_path()};
  if (!fs::is_directory(path))
    throw UsageError(text(path.string(), ": no such run folder"),
                     {.hint = "Give the folder that a run printed, for example runs/unet_quick."});
  if (!fs::exists(folder.recipe()))
    throw UsageError(text(path.string(), ": not a run folder, it has no recipe.toml"),
                     {.hint = "Give the folder that a run printed, for example runs/unet_quick."});
  return folder;
}

recipe::Recipe recipe_of(const RunFolder& folder) {
  recipe::Recipe recipe = recipe::read_recipe(folder.recipe());
  recipe.name = folder.path.filename().string();
  return recipe;
}

}  // namespace trestle::train
