#include "trestle/tokens/files/partial_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view partial_end = ".partial", old_end = ".partial.old",
                           lock_end = ".partial.lock";

// "data/plays/" is the folder "data/plays".
fs::path without_slash(fs::path out) { return out.has_filename() ? out : out.parent_path(); }

fs::path with_end(const fs::path& stem, std::string_view end) {
  fs::path path = stem;
  path += std::string(end);
  return path;
}

// The names "plays.4711" and "plays.4711-1" of other processes' folders beside "plays".
std::set<fs::path> stems_beside(const fs::path& out) {
  std::set<fs::path> stems;
  const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  const std::string begin = out.filename().string() + ".";
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin)) continue;
    for (const std::string_view end : {partial_end, old_end, lock_end}) {
      if (!name.ends_with(end) || name.size() <= begin.size() + end.size()) continue;
      const std::string number = name.substr(begin.size(), name.size() - begin.size() - end.size());
      const bool is_number = std::ranges::all_of(
          number, [](unsigned char one) { return std::isdigit(one) != 0 || one == '-'; });
      if (is_number) stems.insert(out.parent_path() / (begin + number));
    }
  }
  return stems;
}

// On a file system without locks a second lock is granted too.
bool excludes_others(const fs::path& lock) { return !FileLock::try_lock(lock); }

}  // namespace

void clean_up_after_killed(const fs::path& given) {
  const fs::path out = without_slash(given);
  for (const fs::path& stem : stems_beside(out)) {
    const fs::path lock_file = with_end(stem, lock_end), old = with_end(stem, old_end);
    std::error_code none;
    try {
      const auto lock = FileLock::try_lock(lock_file);
      if (!lock || !excludes_others(lock_file)) continue;
      if (fs::exists(old, none) && !fs::exists(out, none)) fs::rename(old, out, none);
      if (fs::exists(out, none)) fs::remove_all(old, none);
      fs::remove_all(with_end(stem, partial_end), none);
      fs::remove(lock_file, none);
    } catch (const FileError&) {
      continue;  // of another user
    }
  }
}

PartialFolder::PartialFolder(fs::path out) : out_(without_slash(std::move(out))) {
  if (out_.has_parent_path()) fs::create_directories(out_.parent_path());
  // Another host may have a process with this id.
  for (int number = 0; !lock_; ++number) {
    const fs::path stem =
        with_end(out_, number == 0 ? text(".", ::getpid()) : text(".", ::getpid(), "-", number));
    lock_ = FileLock::try_lock(with_end(stem, lock_end));
    path_ = with_end(stem, partial_end);
  }
  fs::remove_all(path_);
  fs::create_directories(path_);
}

PartialFolder::~PartialFolder() {
  std::error_code none;
  fs::remove_all(path_, none);
  fs::remove(with_end(path_, ".lock"), none);
}

void PartialFolder::finish(Overwrite overwrite) {
  const fs::path old = with_end(path_, ".old");
  const bool exists = fs::exists(out_);
  if (exists && overwrite == Overwrite::Refuse && !fs::is_empty(out_))
    throw UsageError(text(out_.string(), ": another process has written it meanwhile"),
                     {.hint = "Choose another folder, or allow to overwrite it (--overwrite)."});
  if (exists) fs::rename(out_, old);
  std::error_code why;
  fs::rename(path_, out_, why);
  if (why && exists) fs::rename(old, out_);
  if (why) throw FileError(why.message(), {.file = out_.string()});
  std::error_code none;
  if (exists) fs::remove_all(old, none);
}

}  // namespace trestle::tokens
