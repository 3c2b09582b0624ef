#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/base/overwrite.h"

// The one rule for files that a verb writes where its caller names a place. Not installed.
namespace trestle::train {

// Whether the path is an existing file that a run cannot do without: its recipe, metrics, log and
// checkpoints. The pictures of a run can be drawn again.
bool is_of_a_run(const std::filesystem::path& file);

// Throws UsageError for a file of a run, which no flag allows to replace: with other contents the
// run could not be resumed. Throws as refuse_overwriting() for other files.
void refuse_replacing(const std::vector<std::filesystem::path>& files, Overwrite overwrite,
                      const std::string& flag);

}  // namespace trestle::train
