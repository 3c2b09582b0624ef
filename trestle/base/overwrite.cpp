#include "trestle/base/overwrite.h"

#include <algorithm>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;

// Whether writing `path` would replace something of the user's: a file, or a link even if it leads
// nowhere, since a rename replaces the link itself.
bool is_taken(const fs::path& path) {
  std::error_code error;
  const fs::file_status link = fs::symlink_status(path, error);
  if (!fs::exists(link)) return false;
  const fs::file_status target = fs::status(path, error);
  return !fs::exists(target) || fs::is_regular_file(target) || fs::is_directory(target);
}

std::string list_of(const std::vector<fs::path>& files) {
  constexpr std::size_t shown = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(files.size(), shown); ++i)
    names.push_back(files[i].string());
  if (files.size() > shown) names.push_back(text("and ", files.size() - shown, " more"));
  return join(names, ", ");
}

}  // namespace

void refuse_overwriting(const std::vector<fs::path>& files, Overwrite overwrite,
                        const std::string& flag) {
  if (overwrite == Overwrite::Allow) return;
  std::vector<fs::path> taken;
  std::ranges::copy_if(files, std::back_inserter(taken), is_taken);
  if (taken.empty()) return;
  const bool one = files.size() == 1;
  throw UsageError(one ? text(flag, " ", taken[0].string(), ": exists already")
                       : text(flag, ": ", taken.size(), " of ", files.size(),
                              " files that would be written exist already: ", list_of(taken)),
                   {.hint = text("Choose another place, or give --overwrite to replace ",
                                 taken.size() == 1 ? "it." : "them.")});
}

}  // namespace trestle
