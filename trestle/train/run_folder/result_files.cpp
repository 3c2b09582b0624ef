#include "trestle/train/run_folder/result_files.h"

#include <algorithm>
#include <array>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/train/run_folder/run_folder.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

bool is_run_folder(const fs::path& folder) { return fs::exists(RunFolder{folder}.recipe()); }

}  // namespace

bool is_of_a_run(const fs::path& file) {
  std::error_code none;
  const fs::path whole = fs::absolute(file, none).lexically_normal(), folder = whole.parent_path();
  if (none || !fs::exists(whole, none)) return false;
  if (checkpoint::is_checkpoint(folder)) return true;
  for (fs::path above = folder; above.has_relative_path(); above = above.parent_path()) {
    const RunFolder run{above};
    if (!is_run_folder(above)) continue;
    const fs::path first = above / *whole.lexically_relative(above).begin();
    return std::ranges::any_of(
        std::array{run.recipe(), run.metrics(), run.log(), run.timeline(), run.environment(),
                   run.best(), run.bests(), run.last(), run.deepspeed()},
        [&](const fs::path& own) { return own == first; });
  }
  return false;
}

void refuse_replacing(const std::vector<fs::path>& files, Overwrite overwrite,
                      const std::string& flag) {
  for (const fs::path& file : files)
    if (is_of_a_run(file))
      throw UsageError(text(flag, " ", file.string(), ": exists and is a file of a run"),
                       {.hint = text("Choose another place with ", flag, ".")});
  refuse_overwriting(files, overwrite, flag);
}

}  // namespace trestle::train
