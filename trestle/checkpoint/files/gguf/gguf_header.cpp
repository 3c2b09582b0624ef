#include "trestle/checkpoint/files/gguf/gguf_header.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/pickle/pickle.h"

namespace trestle::checkpoint {

namespace {

constexpr std::uint64_t longest_key = 65535;
constexpr std::uint64_t most_dimensions_of_gguf = 4;
constexpr std::uint64_t largest_alignment = 1 << 20;

// The types of metadata.
enum class ValueType : std::uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  Bool,
  String,
  Array,
  U64,
  I64,
  F64
};

std::size_t bytes_of(ValueType type) {
  switch (type) {
    case ValueType::U8:
    case ValueType::I8:
    case ValueType::Bool:
      return 1;
    case ValueType::U16:
    case ValueType::I16:
      return 2;
    case ValueType::U32:
    case ValueType::I32:
    case ValueType::F32:
      return 4;
    default:
      return 8;  // a string has at least the bytes of its length
  }
}

// Reads the header's bytes in order, a chunk of the file at a time.
class GgufReader {
 public:
  explicit GgufReader(const FileBytes& file)
      : file_(file), end_(std::min(file.size(), longest_gguf_header)) {}

  GgufHeader read();

 private:
  [[noreturn]] void fail(const std::string& what, std::string hint = "") const {
    throw FormatError("cannot trust this GGUF file: " + what,
                      {.file = file_.name(), .hint = std::move(hint)});
  }

  std::uint64_t left() const { return end_ - at_; }

  // The view is valid until the next call.
  std::string_view take(std::uint64_t count) {
    if (count > left())
      fail(end_ < file_.size() ? text("its header is longer than ", longest_gguf_header, " bytes")
                               : text("its header is cut short at ", file_.size(), " bytes"));
    if (at_ < chunk_begin_ || at_ + count > chunk_begin_ + chunk_.size()) {
      constexpr std::uint64_t usual = 256 << 10;
      chunk_ = file_.read(at_, std::min(left(), std::max(usual, count)));
      chunk_begin_ = at_;
    }
    const std::uint64_t from = at_ - chunk_begin_;
    at_ += count;
    return std::string_view(chunk_).substr(from, count);
  }

  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view from = take(bytes);
    for (std::size_t i = bytes; i > 0; --i)
      value = value << 8 | static_cast<unsigned char>(from[i - 1]);
    return value;
  }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }

  std::string string_of(const char* what, std::uint64_t longest) {
    const std::uint64_t length = number(8);
    if (length > left() || length > longest) fail(text(what, " has ", length, " bytes"));
    return std::string(take(length));
  }
  std::string name_of(const char* what) {
    std::string name = string_of(what, longest_key);
    if (name.empty() || !is_utf8(name)) fail(text(what, " is empty or not UTF-8"));
    return name;
  }

  std::int64_t integer(ValueType type, const std::string& key) {
    const std::size_t bytes = bytes_of(type);
    const std::uint64_t value = number(bytes);
    const bool is_signed = type == ValueType::I8 || type == ValueType::I16 ||
                           type == ValueType::I32 || type == ValueType::I64;
    const auto as_signed = static_cast<std::int64_t>(value);
    if (is_signed) {
      const auto unused = static_cast<int>(8 * (8 - bytes));
      return static_cast<std::int64_t>(value << unused) >> unused;
    }
    if (as_signed < 0) fail(text("'", shown(key), "' = ", value, " does not fit 63 bits"));
    return as_signed;
  }
  double real(ValueType type) {
    return type == ValueType::F32 ? static_cast<double>(std::bit_cast<float>(u32()))
                                  : std::bit_cast<double>(number(8));
  }
  bool flag(const std::string& key) {
    const std::uint64_t value = number(1);
    if (value > 1) fail(text("'", shown(key), "' is neither true nor false, but ", value));
    return value == 1;
  }

  ValueType value_type(const std::string& key) {
    const std::uint32_t type = u32();
    if (type > static_cast<std::uint32_t>(ValueType::F64))
      fail(text("'", shown(key), "' has the unknown type ", type));
    return ValueType{type};
  }
  template <class T, class Read>
  std::vector<T> values(std::uint64_t count, Read&& read_one) {
    std::vector<T> all;
    all.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) all.push_back(read_one());
    return all;
  }
  GgufValue value(const std::string& key);
  GgufValue array(const std::string& key);
  void read_metadata(GgufHeader& header, std::uint64_t count);
  GgufTensor tensor();
  void place(GgufHeader& header) const;

  const FileBytes& file_;
  const std::uint64_t end_;
  std::uint64_t at_ = 0;
  std::string chunk_;
  std::uint64_t chunk_begin_ = 0;
};

GgufValue GgufReader::value(const std::string& key) {
  const ValueType type = value_type(key);
  switch (type) {
    case ValueType::F32:
    case ValueType::F64:
      return real(type);
    case ValueType::Bool:
      return flag(key);
    case ValueType::String:
      return string_of("a string of the metadata", end_);
    case ValueType::Array:
      return array(key);
    default:
      return integer(type, key);
  }
}

GgufValue GgufReader::array(const std::string& key) {
  const ValueType type = value_type(key);
  const std::uint64_t count = number(8);
  if (type == ValueType::Array) fail(text("'", shown(key), "' is an array of arrays"));
  if (count > left() / bytes_of(type))
    fail(text("'", shown(key), "' has ", count, " values, but the file ", file_.size(), " bytes"));
  switch (type) {
    case ValueType::F32:
    case ValueType::F64:
      return values<double>(count, [&] { return real(type); });
    case ValueType::Bool:
      return values<bool>(count, [&] { return flag(key); });
    case ValueType::String:
      return values<std::string>(count, [&] { return string_of("a string of an array", end_); });
    default:
      return values<std::int64_t>(count, [&] { return integer(type, key); });
  }
}

void GgufReader::read_metadata(GgufHeader& header, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key = name_of("a key of the metadata");
    GgufValue one = value(key);
    if (!header.metadata.try_emplace(key, std::move(one)).second)
      fail(text("the metadata has the key '", shown(key), "' twice"));
  }
  const auto found = header.metadata.find("general.alignment");
  if (found == header.metadata.end()) return;
  const auto* alignment = std::get_if<std::int64_t>(&found->second);
  if (alignment == nullptr || *alignment < 1 ||
      static_cast<std::uint64_t>(*alignment) > largest_alignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(*alignment)))
    fail(text("general.alignment is not a power of 2 up to ", largest_alignment));
  header.alignment = static_cast<std::uint64_t>(*alignment);
}

// Its begin is relative to the tensors' bytes here.
GgufTensor GgufReader::tensor() {
  GgufTensor out;
  out.name = name_of("a tensor's name");
  const auto bad = [&](const std::string& what) {
    fail(text("tensor '", shown(out.name), "' ", what));
  };
  const std::uint32_t dimensions = u32();
  if (dimensions > most_dimensions_of_gguf) bad(text("has ", dimensions, " dimensions"));
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const std::uint64_t size = number(8);
    if (size > std::uint64_t{1} << 62 || __builtin_mul_overflow(elements, size, &elements))
      bad("is larger than any memory");
    out.shape.insert(out.shape.begin(), static_cast<std::int64_t>(size));
  }
  const std::uint32_t type = u32();
  out.type = GgufType{type};
  const GgufBlock block = block_of(out.type);
  if (block.elements == 0)
    bad(text("has the type ", gguf_type_name(type), ", which is not supported (",
             known_gguf_types(), ")"));
  const std::uint64_t row = out.shape.empty() ? 1 : static_cast<std::uint64_t>(out.shape.back());
  if (row % block.elements != 0)
    bad(text("of shape [", join(out.shape, ", "), "] has no rows of whole blocks of ",
             block.elements, " elements, as ", block.name, " needs"));
  out.begin = number(8);
  if (__builtin_mul_overflow(elements / block.elements, block.bytes, &out.bytes))
    bad("is larger than any memory");
  return out;
}

// Checks the tensors' bytes, and makes their offsets those of the file.
void GgufReader::place(GgufHeader& header) const {
  const std::uint64_t data = (at_ + header.alignment - 1) / header.alignment * header.alignment;
  for (GgufTensor& tensor : header.tensors) {
    const auto bad = [&](const std::string& what) {
      fail(text("tensor '", shown(tensor.name), "' ", what));
    };
    if (tensor.begin % header.alignment != 0)
      bad(text("begins at byte ", tensor.begin, ", which is not a multiple of the alignment ",
               header.alignment));
    if (data > file_.size() || tensor.begin > file_.size() - data ||
        tensor.bytes > file_.size() - data - tensor.begin)
      bad(text("of ", tensor.bytes, " bytes from byte ", data, " + ", tensor.begin,
               " on is not within the file's ", file_.size(), " bytes; it was cut short"));
    tensor.begin += data;
  }
  std::vector<const GgufTensor*> in_order;
  for (const GgufTensor& tensor : header.tensors)
    if (tensor.bytes > 0) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return a->begin < b->begin; });
  for (std::size_t i = 1; i < in_order.size(); ++i)
    if (in_order[i]->begin < in_order[i - 1]->begin + in_order[i - 1]->bytes)
      fail(text("tensors '", shown(in_order[i - 1]->name), "' and '", shown(in_order[i]->name),
                "' overlap"));
}

GgufHeader GgufReader::read() {
  GgufHeader header;
  header.file = file_.name();
  if (file_.size() < 24 || take(4) != "GGUF")
    throw FormatError("is not a GGUF file", {.file = file_.name()});
  header.version = u32();
  if (header.version != 0 && (header.version & 0xffff) == 0)
    fail("it has the byte order of big-endian machines, which is not supported");
  if (header.version != 2 && header.version != 3)
    fail(text("it has version ", header.version, "; 2 and 3 are supported"),
         "Convert the model again with a newer llama.cpp.");
  const std::uint64_t tensors = number(8), keys = number(8);
  // A key takes at least its length, a character, its type and a value.
  constexpr std::uint64_t least_of_key = 8 + 1 + 4 + 1, least_of_tensor = 8 + 1 + 4 + 4 + 8;
  if (tensors > left() / least_of_tensor || keys > left() / least_of_key)
    fail(text("it announces ", tensors, " tensors and ", keys, " keys, but has ", file_.size(),
              " bytes"));
  read_metadata(header, keys);
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(tensor());
    if (!names.insert(header.tensors.back().name).second)
      fail(text("it has the tensor '", shown(header.tensors.back().name), "' twice"));
  }
  place(header);
  return header;
}

}  // namespace

GgufHeader read_gguf_header(const FileBytes& file) { return GgufReader(file).read(); }

GgufHeader read_gguf_header(const std::filesystem::path& path) {
  return read_gguf_header(FileBytes(path));
}

}  // namespace trestle::checkpoint
