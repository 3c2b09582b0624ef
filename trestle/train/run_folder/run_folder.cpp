#include "trestle/train/run_folder/run_folder.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/is_checkpoint.h"

namespace trestle::train {

namespace fs = std::filesystem;

fs::path RunFolder::picture(std::int64_t epoch) const {
  char name[32];
  std::snprintf(name, sizeof name, "epoch_%03lld.png", static_cast<long long>(epoch));
  return path / "pictures" / name;
}

fs::path RunFolder::sample(std::int64_t epoch) const {
  char name[32];
  std::snprintf(name, sizeof name, "epoch_%03lld.txt", static_cast<long long>(epoch));
  return path / "samples" / name;
}

void check_run_name(const std::string& name) {
  constexpr std::size_t longest = 200;  // a file system's own limit is 255, and "_2" may follow
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (plain && !name.empty() && name.size() <= longest && name[0] != '.' && name[0] != '-') return;
  throw UsageError(text("a run cannot be named '", name, "'"),
                   {.hint = text("A name is that of a folder: 1 to ", longest,
                                 " bytes, no '/' and no control characters, and it does not begin "
                                 "with '.' or '-'. Give one with --name.")});
}

void lock_run_folder(RunFolder& folder) {
  std::optional<FileLock> lock = FileLock::try_lock(folder.path / ".lock");
  if (!lock)
    throw StateError(text(folder.path.string(), ": another process is training in this folder"),
                     {.hint = "Wait until it has ended, or stop it (Ctrl-C there saves). A new run "
                              "from a recipe gets a folder of its own."});
  folder.lock = std::make_shared<const FileLock>(std::move(*lock));
}

RunFolder make_run_folder(const recipe::Recipe& recipe) {
  check_run_name(recipe.name);
  const fs::path runs = recipe.train.runs;
  std::error_code error;
  fs::create_directories(runs, error);
  RunFolder folder{runs / recipe.name};
  // create_directory() reports whether this call created the folder, so that two runs that start at
  // once get two folders.
  for (int number = 2; !error && !fs::create_directory(folder.path, error) && !error; ++number)
    folder.path = runs / text(recipe.name, "_", number);
  if (error)
    throw FileError(text("cannot create the run's folder: ", error.message()),
                    {.file = folder.path.string()});
  try {
    // The lock is taken before recipe.toml exists, without which the run cannot be resumed.
    lock_run_folder(folder);
    fs::create_directories(folder.path / "pictures");
    write_file(folder.recipe(), to_toml(recipe));
  } catch (...) {  // for example a full disk: an empty folder would be taken for a run
    fs::remove_all(folder.path, error);
    throw;
  }
  return folder;
}

RunFolder open_run_folder(const fs::path& path) {
  RunFolder folder{path.has_filename() ? path : path.parent_path()};
  if (!fs::is_directory(path))
    throw UsageError(
        text(path.string(), fs::exists(path) ? ": is neither a run folder nor a file of weights"
                                             : ": no such run folder"),
        {.hint = "Give the folder that a run printed, for example runs/unet_quick."});
  if (!fs::exists(folder.recipe()))
    throw UsageError(text(path.string(), ": not a run folder, it has no recipe.toml"),
                     {.hint = "Give the folder that a run printed, for example runs/unet_quick."});
  return folder;
}

fs::path saved_weights(const RunFolder& folder, Checkpoint which) {
  const bool best = which == Checkpoint::Best;
  const fs::path file = best ? folder.best() : folder.last();
  if (best ? fs::exists(file) : checkpoint::is_checkpoint(file)) return file;
  std::string hint = best ? "It appears at the end of the first epoch."
                          : "It appears at the end of the first epoch, or when the run is stopped.";
  if (best && checkpoint::is_checkpoint(folder.last()))
    hint += " The run has saved its last weights: --checkpoint last uses them.";
  throw UsageError(
      text(folder.path.string(), ": has no ", fs::relative(file, folder.path).string(), " yet"),
      {.hint = std::move(hint)});
}

recipe::Recipe recipe_of(const RunFolder& folder) {
  recipe::Recipe recipe = recipe::read_recipe(folder.recipe());
  recipe.name = folder.path.filename().string();
  return recipe;
}

}  // namespace trestle::train
