#include "trestle/checkpoint/files/pickle/zip_file.h"

#include <zip.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {

void ZipFile::Close::operator()(zip* archive) const { zip_discard(archive); }

ZipFile::ZipFile(const std::filesystem::path& path) : path_(path.string()) {
  std::error_code missing;
  file_size_ = std::filesystem::file_size(path, missing);
  if (missing) throw FileError(text("cannot be read: ", missing.message()), {.file = path_});
  int code = 0;
  archive_.reset(zip_open(path_.c_str(), ZIP_RDONLY, &code));
  if (archive_) {
    refuse_doubles();
    return;
  }
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string why = zip_error_strerror(&error);
  zip_error_fini(&error);
  if (code == ZIP_ER_OPEN || code == ZIP_ER_NOENT || code == ZIP_ER_READ)
    throw FileError(text("cannot be read: ", why), {.file = path_});
  fail(text("the zip archive is broken (", why, "); it may be cut short"));
}

// Readers differ in which of two entries of one name they take.
void ZipFile::refuse_doubles() const {
  std::set<std::string> names;
  const zip_int64_t entries = zip_get_num_entries(archive_.get(), 0);
  for (zip_int64_t i = 0; i < entries; ++i) {
    const char* const name = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), 0);
    if (name != nullptr && !names.insert(name).second)
      fail(text("the zip archive has the entry '", name, "' twice"));
  }
}

void ZipFile::fail(const std::string& what, std::string hint) const {
  throw FormatError(text("cannot trust the tensors in this file: ", what),
                    {.file = path_, .hint = std::move(hint)});
}

std::int64_t ZipFile::number_of(const std::string& entry) const {
  return zip_name_locate(archive_.get(), entry.c_str(), 0);
}

bool ZipFile::has(const std::string& entry) const { return number_of(entry) >= 0; }

std::string ZipFile::folder_of(const std::string& name) const {
  const zip_int64_t entries = zip_get_num_entries(archive_.get(), 0);
  for (zip_int64_t i = 0; i < entries; ++i) {
    const char* const found = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), 0);
    const std::string_view entry = found == nullptr ? "" : found;
    const std::size_t slash = entry.find('/');
    if (slash != std::string_view::npos && entry.substr(slash + 1) == name)
      return std::string(entry.substr(0, slash + 1));
  }
  fail(text("it is a zip archive without ", name, ", so torch.save did not write it"));
}

std::uint64_t ZipFile::size(const std::string& entry) const {
  const std::int64_t number = number_of(entry);
  zip_stat_t about;
  constexpr zip_uint64_t needed = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
  if (number < 0 ||
      zip_stat_index(archive_.get(), static_cast<zip_uint64_t>(number), 0, &about) != 0 ||
      (about.valid & needed) != needed)
    fail(text("its entry '", entry, "' is missing"));
  if (about.comp_method != ZIP_CM_STORE ||
      ((about.valid & ZIP_STAT_ENCRYPTION_METHOD) != 0 && about.encryption_method != ZIP_EM_NONE))
    fail(text("its entry '", entry, "' is compressed or encrypted, which torch.save never does"),
         "In Python: torch.save(torch.load(file), other_file).");
  if (about.size != about.comp_size || about.size > file_size_)
    fail(text("its entry '", entry, "' has ", about.size, " bytes, but the whole file has ",
              file_size_));
  return about.size;
}

void ZipFile::read(const std::string& entry, void* into, std::uint64_t bytes) const {
  const std::uint64_t all = size(entry);
  if (bytes > all)
    fail(text("its entry '", entry, "' has ", all, " bytes, but ", bytes, " are needed"));
  const std::unique_ptr<zip_file_t, int (*)(zip_file_t*)> opened(
      zip_fopen_index(archive_.get(), static_cast<zip_uint64_t>(number_of(entry)), 0), zip_fclose);
  if (!opened) fail(text("its entry '", entry, "' is broken: ", zip_strerror(archive_.get())));
  const auto read_some = [&](void* to, std::uint64_t most) {
    const zip_int64_t got = zip_fread(opened.get(), to, most);
    if (got < 0) fail(text("its entry '", entry, "' is broken: ", zip_file_strerror(opened.get())));
    return static_cast<std::uint64_t>(got);
  };
  constexpr std::uint64_t most_at_once = 1 << 30;
  auto* to = static_cast<char*>(into);
  for (std::uint64_t left = bytes; left > 0;) {
    const std::uint64_t got = read_some(to, std::min(left, most_at_once));
    if (got == 0) fail(text("its entry '", entry, "' is cut short"));
    to += got;
    left -= got;
  }
  // libzip compares the checksum when it reaches the end.
  char beyond = 0;
  if (bytes == all) read_some(&beyond, 1);
}

std::string ZipFile::read(const std::string& entry) const {
  std::string content(size(entry), '\0');
  read(entry, content.data(), content.size());
  return content;
}

}  // namespace trestle::checkpoint
