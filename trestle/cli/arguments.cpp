
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/cli/verbs.h"

namespace trestle::cli {

namespace fs = std::filesystem;

std::string field_group(const std::string& section) { return "[" + section + "] of the recipe"; }

void refuse_without_effect(const Verb& verb, const std::vector<std::string>& flags,
                           const std::string& form) {
  std::vector<std::string> given;
  for (const std::string& flag : flags)
    if (verb.given(flag)) given.push_back(flag);
  if (given.empty()) return;
  throw UsageError(
      text(join(given, " and "), given.size() == 1 ? " has" : " have", " no effect ", form),
      {.hint = text("Leave ", given.size() == 1 ? "it" : "them", " out.")});
}

void add_adapter_option(Verb verb, std::filesystem::path& folder) {
  verb.add("--adapter", folder,
           "A folder of PEFT, such as `trestle export --names peft` writes: low-rank adapters that "
           "are put beside the model's weights")
      .type("FOLDER");
}

void add_checkpoint_flag(Verb verb, train::Checkpoint& which) {
  verb.add(
          "--checkpoint",
          [&which](const std::string& word) {
            which = word == "last" ? train::Checkpoint::Last : train::Checkpoint::Best;
          },
          "Which weights of a run folder: best (the default) or last")
      .one_of({"best", "last"})
      .type("WHICH");
}

void refuse_checkpoint_of_file(const Verb& verb, const fs::path& weights) {
  if (fs::is_regular_file(weights) || checkpoint::is_checkpoint(weights))
    refuse_without_effect(verb, {"--checkpoint"}, "with " + weights.string());
}

namespace {

// A pipe that has a name. To open it waits for a writer. The shell's own pipes, /dev/stdin and
// <(...), have one.
bool is_named_pipe(const fs::path& path) {
  const std::string folder = fs::absolute(path).lexically_normal().parent_path().string();
  return fs::is_fifo(path) && folder != "/dev" && !folder.starts_with("/dev/") &&
         !folder.starts_with("/proc/");
}

}  // namespace

void need_file(const fs::path& path, const std::string& flag) {
  if (!fs::exists(path)) throw UsageError(text(flag, ": there is no file '", path.string(), "'"));
  if (fs::is_directory(path))
    throw UsageError(text(flag, ": '", path.string(), "' is a folder, not a file"));
  if (is_named_pipe(path))
    throw UsageError(text(flag, ": '", path.string(), "' is a named pipe, not a file"),
                     {.hint = "Give a file, or pipe the content into /dev/stdin."});
}

void need_ending(const fs::path& file, const std::string& ending, const std::string& flag) {
  if (file.empty() || file.extension() == ending) return;
  throw UsageError(
      text(flag, " ", file.string(), ": the file's name must end in ", ending),
      {.hint = text("Write ", flag, " ", fs::path(file).replace_extension(ending).string())});
}

void need_folder(const fs::path& path, const std::string& flag) {
  if (!fs::is_directory(path))
    throw UsageError(text(flag, ": there is no folder '", path.string(), "'"));
}

void need_folder_for(const fs::path& file, const std::string& flag) {
  if (file.empty()) return;
  if (fs::is_directory(file))
    throw UsageError(text(flag, " ", file.string(), ": is a folder, not a file"));
  const fs::path folder = file.parent_path();
  if (folder.empty() || fs::is_directory(folder)) {
    const fs::path writes_into = folder.empty() ? fs::path(".") : folder;
    if (::access(writes_into.c_str(), W_OK) == 0) return;
    const std::string reason = std::strerror(errno);
    throw UsageError(text(flag, " ", file.string(), ": cannot write into its folder: ", reason),
                     {.hint = "Give a file in a folder that you may write to."});
  }
  throw UsageError(text(flag, " ", file.string(), ": there is no folder '", folder.string(), "'"),
                   {.hint = text("Create it first: mkdir -p ", folder.string())});
}

void refuse_one_file(const std::vector<std::pair<std::string, std::string>>& files) {
  for (std::size_t i = 0; i < files.size(); ++i)
    for (std::size_t j = i + 1; j < files.size(); ++j)
      if (!files[i].first.empty() && !files[j].first.empty() &&
          fs::absolute(files[i].first).lexically_normal() ==
              fs::absolute(files[j].first).lexically_normal())
        throw UsageError(
            text(files[i].second, " and ", files[j].second, " name one file, ", files[i].first));
}

std::optional<double> number_in(const std::string& word) {
  try {
    std::size_t end = 0;
    const double number = std::stod(word, &end);
    if (end == word.size()) return number;
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

void add_overwrite_flag(Verb verb, Overwrite& overwrite) {
  verb.add_switch(
      "--overwrite", [&overwrite] { overwrite = Overwrite::Allow; },
      "Replace files that exist already; without it they are refused");
}

std::string exit_codes() {
  return "Exit codes: 0 success; 1 failure; 2 invalid request (a flag, a recipe, a value, a "
         "missing file); 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.";
}

std::string examples(const std::vector<std::string>& lines) {
  std::string out = "Examples:\n";
  for (const std::string& line : lines) out += "  " + line + "\n";
  return out;
}

}  // namespace trestle::cli
