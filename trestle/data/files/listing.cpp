#include "trestle/data/files/listing.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

enum class Kind { Files, Folders };

std::vector<fs::path> list(const fs::path& folder, Kind kind) {
  if (!fs::is_directory(folder)) {
    throw UsageError(
        "no such folder",
        {.file = folder.string(),
         .hint = "Give the folder of your data. Without any, `trestle data synthesize` "
                 "draws some to try things with."});
  }
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    if (entry->is_directory() == (kind == Kind::Folders)) found.push_back(entry->path());
  }
  if (error)
    throw FileError(text("cannot list the folder: ", error.message()), {.file = folder.string()});
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::vector<fs::path> files_of(const fs::path& folder) { return list(folder, Kind::Files); }

std::vector<fs::path> folders_of(const fs::path& folder) { return list(folder, Kind::Folders); }

}  // namespace trestle::data
