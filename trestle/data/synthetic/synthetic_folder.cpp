#include "trestle/data/synthetic/synthetic_folder.h"

#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/file_lock.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* marker = "SYNTHETIC.txt";
constexpr const char* hidden_marker = ".synthetic";

void throw_if(const std::error_code& error, const char* doing, const fs::path& path) {
  if (error) throw FileError(text(doing, ": ", error.message()), {.file = path.string()});
}

// Creates the content folder under a lock. Removes both in the destructor, while the lock is held.
class Workshop {
 public:
  Workshop(const fs::path& beside, const std::string& name)
      : lock_path_(beside / text(".", name, ".lock")),
        content_(beside / text(".", name, ".making")),
        lock_(FileLock::try_lock(lock_path_)) {
    if (!lock_)
      throw StateError(text((beside / name).string(), ": another process is creating these data"),
                       {.hint = "Wait until it has ended, then start again."});
    std::error_code error;
    fs::remove_all(content_, error);  // left by an interrupted process
    fs::create_directory(content_, error);
    if (error) fs::remove(lock_path_);
    throw_if(error, "cannot create the folder", content_);
  }
  ~Workshop() {
    std::error_code ignored;
    fs::remove_all(content_, ignored);
    fs::remove(lock_path_, ignored);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  const fs::path& content() const { return content_; }

 private:
  fs::path lock_path_;
  fs::path content_;
  std::optional<FileLock> lock_;
};

void refuse_if_taken(const fs::path& out) {
  std::error_code error;
  const bool folder = fs::is_directory(out, error);
  if (!fs::exists(out, error) || (folder && fs::is_empty(out, error) && !error)) return;
  const std::optional<std::string> what = synthetic_data_in(out);
  throw UsageError(what     ? text("the folder already has synthetic data: ", *what)
                   : folder ? "the folder already has files"
                            : "a file with this name exists",
                   {.file = out.string(),
                    .hint = what ? "Remove the folder first, or give another one."
                                 : "Synthetic data need a separate folder: give another one."});
}

void mark(const fs::path& folder, const std::string& what) {
  const std::string words =
      text(what, "\nThese data are synthetic: drawn by trestle, for trying things out.\n");
  write_file(folder / marker, words);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.is_directory()) write_file(entry.path() / hidden_marker, words);
}

}  // namespace

void make_synthetic_folder(const fs::path& out, const std::string& what,
                           const std::function<void(const fs::path&)>& write) {
  const fs::path folder = fs::absolute(out.has_filename() ? out : out.parent_path());
  refuse_if_taken(out);
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  throw_if(error, "cannot create the folder", out);
  const Workshop workshop(folder.parent_path(), folder.filename().string());
  refuse_if_taken(out);  // another process may have created it meanwhile
  write(workshop.content());
  mark(workshop.content(), what);
  fs::rename(workshop.content(), folder, error);
  throw_if(error, "cannot move the created data here", out);
}

std::optional<std::string> synthetic_data_in(const fs::path& folder) {
  for (const char* name : {marker, hidden_marker}) {
    if (!fs::is_regular_file(folder / name)) continue;
    return split(read_text_file(folder / name), '\n')[0];
  }
  return std::nullopt;
}

}  // namespace trestle::data
