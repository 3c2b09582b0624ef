#include "trestle/data/files/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/files/npz.h"

namespace trestle::data {
namespace {

constexpr std::string_view magic = "\x93NUMPY";

[[noreturn]] void fail(std::string_view name, std::string_view what, std::string_view hint = {}) {
  throw FormatError(text("cannot read the array: ", what),
                    {.file = std::string(name), .hint = std::string(hint)});
}

// The dictionary at the beginning of a file, a Python literal:
//
//     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Header {
 public:
  Header(std::string_view words, std::string_view name) : rest_(words), name_(name) {
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        if (skip_spaces(); rest_.starts_with('['))
          fail(name_, "its numbers are records of several fields");
        descr = quoted();
      } else if (key == "fortran_order") {
        fortran = boolean();
      } else if (key == "shape") {
        shape = numbers();
      } else {
        fail(name_, text("its header has the key '", key, "'"));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    if (!descr || !fortran || !shape) fail(name_, "its header lacks descr, fortran_order or shape");
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  void skip_spaces() {
    while (rest_.starts_with(' ') || rest_.starts_with('\n')) rest_.remove_prefix(1);
  }
  bool take(char letter) {
    skip_spaces();
    if (!rest_.starts_with(letter)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char letter) {
    if (!take(letter)) fail(name_, text("its header is damaged where '", letter, "' should be"));
  }
  std::string quoted() {
    skip_spaces();
    const char mark = rest_.starts_with('"') ? '"' : '\'';
    expect(mark);
    const auto end = rest_.find(mark);
    if (end == std::string_view::npos) fail(name_, "its header is damaged");
    const std::string word(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return word;
  }
  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(std::string_view(word).size());
      return value;
    }
    fail(name_, "its header is damaged where True or False should be");
  }
  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> all;
    expect('(');
    while (!take(')')) {
      skip_spaces();
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      if (error != std::errc() || number < 0) fail(name_, "its header is damaged in the shape");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      all.push_back(number);
      constexpr std::size_t most_dimensions = 64;  // NumPy's own limit
      if (all.size() > most_dimensions) fail(name_, "it has more than 64 dimensions");
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return all;
  }

  std::string_view rest_;
  std::string_view name_;
};

// "f4" for "<f4"; single bytes have no order ("|u1").
std::string type_of(const std::string& descr, std::string_view name) {
  static constexpr std::array known = {"b1", "u1", "i1", "u2", "i2", "u4",
                                       "i4", "i8", "f2", "f4", "f8"};
  const std::string type = descr.empty() ? "" : descr.substr(1);
  const bool ordered = descr.starts_with('<') || descr.starts_with('|') || descr.starts_with('=');
  if (ordered && std::ranges::find(known, type) != known.end()) return type;
  fail(name, text("its numbers have the type '", descr, "'"),
       descr.starts_with('>')
           ? "They are big-endian. In Python: x.astype(x.dtype.newbyteorder('<'))."
           : "Bools, integers up to int64 and floats can be read. In Python: "
             "x.astype('float32').");
}

// The number of bytes that the shape requires; nothing on overflow.
std::optional<std::int64_t> bytes_of(const std::vector<std::int64_t>& shape, std::int64_t size) {
  std::int64_t bytes = size;
  for (const std::int64_t side : shape) {
    if (side != 0 && bytes > std::numeric_limits<std::int64_t>::max() / side) return std::nullopt;
    bytes *= side;
  }
  return bytes;
}

}  // namespace

std::int64_t NpyArray::count() const {
  std::int64_t count = 1;
  for (const std::int64_t side : shape) count *= side;
  return count;
}

namespace {

// Type and shape, and where the values begin.
std::pair<NpyArray, std::size_t> parse_npy_header(std::string_view bytes, std::string_view name) {
  if (bytes.empty())
    throw FormatError("the file is empty",
                      {.file = std::string(name), .hint = "Save the array again."});
  if (!bytes.starts_with(magic)) fail(name, "it does not begin like a .npy file");
  const auto byte = [&](std::size_t at) {
    return at < bytes.size() ? static_cast<std::size_t>(static_cast<unsigned char>(bytes[at])) : 0;
  };
  const std::size_t version = byte(6);
  if (version < 1 || version > 3)
    fail(name, text("it has format ", version, ".", byte(7), ", but only 1.0 to 3.0 are known"));
  const std::size_t begin = version == 1 ? 10 : 12;
  const std::size_t length = version == 1
                                 ? byte(8) | byte(9) << 8
                                 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (begin + length > bytes.size()) fail(name, "it is cut short in its header");
  const Header header(bytes.substr(begin, length), name);
  if (*header.fortran)
    fail(name, "it is in Fortran order", "In Python: numpy.ascontiguousarray(x).");
  return {{.type = type_of(*header.descr, name), .shape = *header.shape}, begin + length};
}

}  // namespace

NpyArray parse_npy(std::string_view bytes, std::string_view name) {
  auto [array, begin] = parse_npy_header(bytes, name);
  const std::string_view values = bytes.substr(begin);
  const auto wanted = bytes_of(array.shape, array.type[1] - '0');
  if (!wanted || std::cmp_not_equal(*wanted, values.size()))
    fail(name, text("its shape ", join(array.shape, " x "), " of ", array.type, " needs ",
                    wanted ? format_count(*wanted) : "too many", " bytes, but there are ",
                    format_count(static_cast<std::int64_t>(values.size()))));
  array.bytes = std::string(values);
  return std::move(array);
}

NpyArray read_npy_header(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(1 << 16, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (start.empty()) return read_npy(path.string());  // reports what is wrong
  return parse_npy_header(start, path.string()).first;
}

void write_npy(const std::filesystem::path& path, const NpyArray& array) {
  const auto wanted = bytes_of(array.shape, array.type.at(1) - '0');
  if (!wanted || std::cmp_not_equal(*wanted, array.bytes.size()))
    throw UsageError(text("cannot write ", array.bytes.size(), " bytes as an array of ", array.type,
                          " of the shape [", join(array.shape, ", "), "]"),
                     {.file = path.string()});
  const std::string order = array.type == "b1" || array.type.ends_with('1') ? "|" : "<";
  std::string header =
      text("{'descr': '", order, array.type, "', 'fortran_order': False, ", "'shape': (",
           join(array.shape, ", "), array.shape.size() == 1 ? ",), }" : "), }");
  constexpr std::size_t before = 10, unit = 64;  // values begin at a multiple of 64 bytes
  header.resize((before + header.size() + 1 + unit - 1) / unit * unit - before - 1, ' ');
  header += '\n';
  std::string bytes = std::string(magic) + std::string("\x01\0", 2);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  write_file(path, bytes + header + array.bytes);
}

std::filesystem::path file_of_array(const std::string& place) {
  for (const std::string_view ending : {".npz", ".pth", ".pt"}) {
    const auto at = place.rfind(text(ending, ":"));
    if (at != std::string::npos) return place.substr(0, at + ending.size());
  }
  return place;
}

NpyArray read_npy(const std::string& place) {
  const std::filesystem::path file = file_of_array(place);
  if (file.extension() != ".npz") return parse_npy(read_file(file), place);
  const std::string entry =
      file.string().size() < place.size() ? place.substr(file.string().size() + 1) : "";
  return parse_npy(read_npz_entry(file, entry), place);
}

}  // namespace trestle::data
