#include "trestle/checkpoint/files/pickle/zip_records.h"

#include <algorithm>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/byte_cursor.h"
#include "trestle/checkpoint/files/pickle/pickle.h"

namespace trestle::checkpoint {

namespace {

// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3 and 4.5.3
constexpr std::string_view end_mark = "PK\x05\x06", end64_mark = "PK\x06\x06",
                           end64_place_mark = "PK\x06\x07", entry_mark = "PK\x01\x02",
                           local_mark = "PK\x03\x04";
constexpr std::uint64_t end_size = 22, end64_place_size = 20, end64_size = 56, local_size = 30;
constexpr std::uint64_t longest_directory = 256 << 20;
constexpr std::uint64_t in_extra = 0xffffffff;  // the number is in the field for large archives

class DirectoryReader {
 public:
  DirectoryReader(const FileBytes& file, std::uint64_t begin, std::uint64_t bytes)
      : file_(file), begin_(begin), bytes_(bytes) {
    if (begin > file.size() || bytes > file.size() - begin)
      fail(text("its bytes ", begin, " to ", begin + bytes, " are not in the file, which has ",
                file.size()));
  }

  std::map<std::string, ZipRecord> read() {
    const std::string directory = read_directory();
    ByteCursor in(directory, file_.name());
    while (in.left() > 0) read_entry(in);
    return std::move(records_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(text("cannot trust the tensors in this file: ", what),
                      {.file = file_.name()});
  }

  std::string bytes_at(std::uint64_t at, std::uint64_t count) const {
    if (at > bytes_ || count > bytes_ - at) fail("the zip archive is broken; it may be cut short");
    return file_.read(begin_ + at, count);
  }

  std::string read_directory() const {
    constexpr std::uint64_t longest_comment = 0xffff;
    const std::uint64_t tail = std::min(bytes_, end_size + longest_comment);
    const std::string last = bytes_at(bytes_ - tail, tail);
    const std::size_t found = last.rfind(end_mark);
    if (found == std::string::npos || last.size() - found < end_size)
      fail("it is not a zip archive, or it is cut short");
    ByteCursor end(last, file_.name());
    end.take(found + 12);
    std::uint64_t size = end.little_endian(4), at = end.little_endian(4);
    const std::uint64_t end_at = bytes_ - tail + found;
    if (end_at >= end64_place_size) {
      const std::string place = bytes_at(end_at - end64_place_size, end64_place_size);
      if (place.starts_with(end64_place_mark)) {
        ByteCursor in(place, file_.name());
        in.take(8);
        const std::string end64 = bytes_at(in.little_endian(8), end64_size);
        if (!end64.starts_with(end64_mark)) fail("the zip archive's end is broken");
        ByteCursor numbers(end64, file_.name());
        numbers.take(40);
        size = numbers.little_endian(8);
        at = numbers.little_endian(8);
      }
    }
    if (size > longest_directory) fail(text("its directory has ", size, " bytes"));
    return bytes_at(at, size);
  }

  void read_entry(ByteCursor& in) {
    if (in.take(4) != entry_mark) fail("the zip archive's directory is broken");
    in.take(4);
    const std::uint64_t flags = in.little_endian(2), method = in.little_endian(2);
    in.take(4);
    ZipRecord record;
    record.crc = static_cast<std::uint32_t>(in.little_endian(4));
    std::uint64_t stored = in.little_endian(4), size = in.little_endian(4);
    const std::uint64_t name_size = in.little_endian(2), extra_size = in.little_endian(2),
                        comment_size = in.little_endian(2);
    in.take(8);
    std::uint64_t at = in.little_endian(4);
    const std::string name(in.take(name_size));
    const std::string_view extra = in.take(extra_size);
    in.take(comment_size);
    read_extra(extra, size, stored, at);
    constexpr std::uint64_t encrypted = 1;
    if (method != 0 || size != stored || (flags & encrypted) != 0)
      throw FormatError(
          text("cannot trust the tensors in this file: its entry '", shown(name),
               "' is compressed or encrypted, which torch.save never does"),
          {.file = file_.name(), .hint = "In Python: torch.save(torch.load(file), other_file)."});
    const std::string local = bytes_at(at, local_size);
    if (!local.starts_with(local_mark)) fail(text("its entry '", shown(name), "' is broken"));
    ByteCursor lengths(local, file_.name());
    lengths.take(26);
    const std::uint64_t before = local_size + lengths.little_endian(2) + lengths.little_endian(2);
    if (before > bytes_ - at || size > bytes_ - at - before)
      fail(
          text("its entry '", shown(name), "' has ", size, " bytes, but the archive has ", bytes_));
    record.begin = begin_ + at + before;
    record.bytes = size;
    if (!records_.emplace(name, record).second)
      fail(text("its entry '", shown(name), "' is there twice"));
  }

  void read_extra(std::string_view extra, std::uint64_t& size, std::uint64_t& stored,
                  std::uint64_t& at) const {
    ByteCursor in(extra, file_.name());
    while (in.left() >= 4) {
      const std::uint64_t kind = in.little_endian(2), count = in.little_endian(2);
      const std::string_view content = in.take(count);
      if (kind != 1) continue;
      ByteCursor numbers(content, file_.name());
      for (std::uint64_t* const number : {&size, &stored, &at})
        if (*number == in_extra) *number = numbers.little_endian(8);
    }
  }

  const FileBytes& file_;
  std::uint64_t begin_, bytes_;
  std::map<std::string, ZipRecord> records_;
};

}  // namespace

std::map<std::string, ZipRecord> find_zip_records(const FileBytes& file, std::uint64_t begin,
                                                  std::uint64_t bytes) {
  return DirectoryReader(file, begin, bytes).read();
}

}  // namespace trestle::checkpoint
