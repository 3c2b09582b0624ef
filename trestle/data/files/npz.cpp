#include "trestle/data/files/npz.h"

#include <zip.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

struct CloseArchive {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Archive = std::unique_ptr<zip_t, CloseArchive>;

struct CloseEntry {
  void operator()(zip_file_t* entry) const { zip_fclose(entry); }
};

[[noreturn]] void fail_archive(const std::filesystem::path& file, const std::string& what,
                               std::string hint = {}) {
  throw FormatError(text("cannot read the arrays: ", what),
                    {.file = file.string(), .hint = std::move(hint)});
}

Archive open_archive(const std::filesystem::path& file) {
  int code = 0;
  Archive archive(zip_open(file.c_str(), ZIP_RDONLY, &code));
  if (archive) return archive;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string why = zip_error_strerror(&error);
  zip_error_fini(&error);
  if (code == ZIP_ER_OPEN || code == ZIP_ER_NOENT || code == ZIP_ER_READ)
    throw FileError(text("cannot be read: ", why), {.file = file.string()});
  fail_archive(file, text("the zip archive is broken (", why, ")"));
}

std::vector<std::string> names_in(zip_t* archive) {
  std::vector<std::string> names;
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* name = zip_get_name(archive, static_cast<zip_uint64_t>(i), 0);
    const std::string entry = name == nullptr ? "" : name;
    if (entry.ends_with(".npy")) names.push_back(entry.substr(0, entry.size() - 4));
  }
  return names;
}

}  // namespace

std::string read_npz_entry(const std::filesystem::path& file, const std::string& name) {
  const Archive archive = open_archive(file);
  const std::vector<std::string> names = names_in(archive.get());
  if (names.empty()) fail_archive(file, "there is no array in it");
  if (name.empty() && names.size() > 1)
    fail_archive(file, text("it has ", names.size(), " arrays: ", join(names, ", ")),
                 text("Choose one: ", file.string(), ":", names[0]));
  const std::string wanted = name.empty() ? names[0] : name;
  if (std::ranges::find(names, wanted) == names.end())
    fail_archive(file, text("there is no array '", wanted, "' in it", did_you_mean(wanted, names)),
                 text("It has ", join(names, ", "), "."));
  const std::string entry = wanted + ".npy";
  const std::unique_ptr<zip_file_t, CloseEntry> opened(zip_fopen(archive.get(), entry.c_str(), 0));
  if (!opened)
    fail_archive(file, text("its array '", wanted, "' is broken: ", zip_strerror(archive.get())));
  // Reads until the end: the size in the archive may be wrong.
  std::string bytes;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const zip_int64_t got = zip_fread(opened.get(), buffer.data(), buffer.size());
    if (got < 0)
      fail_archive(file,
                   text("its array '", wanted, "' is broken: ", zip_file_strerror(opened.get())));
    if (got == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace trestle::data
