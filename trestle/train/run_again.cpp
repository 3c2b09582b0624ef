#include "trestle/train/run_again.h"

#include <unistd.h>

#include <cstdlib>
#include <system_error>

#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

constexpr const char* file_name = ".launch";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

// trestle launch gives each launch a name of its own. torchrun's is "none" unless somebody names it,
// but its agent, which outlives the restarts, is the parent of all ranks.
std::string launch_name() {
  const std::string name = variable("TORCHELASTIC_RUN_ID");
  if (name.empty() || !variable("TRESTLE_LAUNCH").empty()) return name;
  return text(name, "-", getppid());
}

void note_launch(const std::filesystem::path& run_folder) {
  const std::string name = launch_name();
  if (!name.empty()) write_file(run_folder / file_name, name);
}

std::optional<std::filesystem::path> folder_of_launch(const std::filesystem::path& runs) {
  const std::string name = launch_name();
  std::error_code error;
  if (name.empty() || !std::filesystem::is_directory(runs, error)) return std::nullopt;
  for (const auto& entry : std::filesystem::directory_iterator(runs, error)) {
    const auto file = entry.path() / file_name;
    if (std::filesystem::exists(file, error) && read_file(file) == name) return entry.path();
  }
  return std::nullopt;
}

}  // namespace trestle::train
