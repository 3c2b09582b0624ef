#include "trestle/train/run_folder/run_again.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "trestle/base/files.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

constexpr const char* file_name = ".launch";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The start time of a process since the start of the machine (field 22 of proc(5)): process ids are
// reused, and in a container the first one is always 1.
std::string start_of(pid_t process) {
  std::ifstream file(text("/proc/", process, "/stat"));
  std::string line, field;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  for (int number = 3; number <= 22; ++number) fields >> field;
  return field;
}

std::string mark_of(const recipe::Recipe& recipe) {
  const std::string name = launch_name();
  if (name.empty()) return "";
  return text(name, " ", recipe.name, " ", fnv1a(recipe::to_toml(recipe)));
}

}  // namespace

// trestle launch gives each launch a name. The default of torchrun is "none", but its agent, which
// outlives restarts, is the parent of all ranks.
std::string launch_name() {
  const std::string name = variable("TORCHELASTIC_RUN_ID");
  if (name.empty() || !variable("TRESTLE_LAUNCH").empty()) return name;
  return text(name, "-", getppid(), "-", start_of(getppid()));
}

bool is_started_anew() {
  const std::string count = variable("TORCHELASTIC_RESTART_COUNT");
  return !count.empty() && count != "0";
}

void note_launch(const std::filesystem::path& run_folder, const recipe::Recipe& recipe) {
  const std::string mark = mark_of(recipe);
  if (!mark.empty()) write_file(run_folder / file_name, mark);
}

std::optional<std::filesystem::path> folder_of_launch(const recipe::Recipe& recipe) {
  const std::string name = mark_of(recipe);
  const std::filesystem::path runs = recipe.train.runs;
  std::error_code error;
  if (name.empty() || !std::filesystem::is_directory(runs, error)) return std::nullopt;
  for (const auto& entry : std::filesystem::directory_iterator(runs, error)) {
    const auto file = entry.path() / file_name;
    if (std::filesystem::exists(file, error) && read_file(file) == name) return entry.path();
  }
  return std::nullopt;
}

}  // namespace trestle::train
