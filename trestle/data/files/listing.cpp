#include "trestle/data/files/listing.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

enum class Kind { Files, Skipped, Folders };

bool is_of_windows(const fs::path& path) {
  std::string name = path.filename().string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name == "thumbs.db" || name == "ehthumbs.db" || name == "desktop.ini";
}

// Opening a pipe would wait for a writer, and none of these is a picture.
bool is_special(fs::file_type type) {
  return type == fs::file_type::fifo || type == fs::file_type::socket ||
         type == fs::file_type::character || type == fs::file_type::block;
}

std::vector<fs::path> list(const fs::path& folder, Kind kind) {
  if (!fs::is_directory(folder)) {
    throw UsageError("no such folder",
                     {.file = folder.string(),
                      .hint = "Give the folder of your data, or write synthetic data with "
                              "`trestle data synthesize`."});
  }
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    std::error_code problem;
    if (entry->is_regular_file(problem)) {  // from the listing: no stat for each file
      const Kind own = is_of_windows(entry->path()) ? Kind::Skipped : Kind::Files;
      if (kind == own) found.push_back(entry->path());
      continue;
    }
    const fs::file_type type = entry->status(problem).type();
    // A file's error is reported by its reader; a folder would be missing without an error.
    if (type == fs::file_type::none && kind == Kind::Folders)
      throw FileError(text("cannot be read: ", problem.message()),
                      {.file = entry->path().string()});
    if (kind == Kind::Skipped || (type == fs::file_type::directory) != (kind == Kind::Folders))
      continue;
    if (is_special(type))
      throw FormatError("is a pipe, a socket or a device, not a file",
                        {.file = entry->path().string(), .hint = "Remove it from the folder."});
    found.push_back(entry->path());
  }
  if (error)
    throw FileError(text("cannot list the folder: ", error.message()), {.file = folder.string()});
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::vector<fs::path> files_of(const fs::path& folder) { return list(folder, Kind::Files); }

std::vector<fs::path> skipped_files_of(const fs::path& folder) {
  return list(folder, Kind::Skipped);
}

std::vector<fs::path> folders_of(const fs::path& folder) { return list(folder, Kind::Folders); }

}  // namespace trestle::data
