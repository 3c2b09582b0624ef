#include "trestle/data/files/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

class Inflater {
 public:
  Inflater() { ready_ = inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK; }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  bool ready() const { return ready_; }

  z_stream stream = {};

 private:
  bool ready_ = false;
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view bytes, std::string_view name, std::size_t most) {
  const auto fail = [&](std::string_view reason) {
    throw FormatError(text("not a readable gzip file: ", reason),
                      {.file = std::string(name),
                       .hint = "The file is damaged or incomplete: copy or download it again."});
  };
  Inflater inflater;
  if (!inflater.ready()) fail("out of memory");
  z_stream& stream = inflater.stream;
  std::array<char, 1 << 16> buffer;
  std::string out;
  while (out.size() < most) {
    if (stream.avail_in == 0) {  // zlib counts in 32 bits
      const std::size_t piece = std::min<std::size_t>(bytes.size(), 1 << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(piece);
      bytes.remove_prefix(piece);
    }
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(std::min(buffer.size(), most - out.size()));
    const uInt room = stream.avail_out;
    const int code = inflate(&stream, Z_NO_FLUSH);
    out.append(buffer.data(), room - stream.avail_out);
    if (code == Z_STREAM_END) {
      const bool more =
          stream.avail_in > 0 || !bytes.empty();  // a gzip file may have several members
      if (!more) return out;
      if (inflateReset(&stream) != Z_OK) fail("it has data after its end");
    } else if (code == Z_BUF_ERROR && stream.avail_in == 0 && bytes.empty()) {
      fail("it ends too early");
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      fail(stream.msg == nullptr ? "its data are damaged" : stream.msg);
    }
  }
  return out;
}

std::string gzip(std::string_view bytes) {
  z_stream stream = {};
  constexpr int level = 6, gzip_window = 16 + MAX_WBITS, memory = 8;
  if (deflateInit2(&stream, level, Z_DEFLATED, gzip_window, memory, Z_DEFAULT_STRATEGY) != Z_OK)
    throw Error("cannot compress: out of memory");
  std::array<char, 1 << 16> buffer;
  std::string out;
  for (int code = Z_OK; code != Z_STREAM_END;) {
    if (stream.avail_in == 0) {  // zlib counts in 32 bits
      const std::size_t piece = std::min<std::size_t>(bytes.size(), 1 << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(piece);
      bytes.remove_prefix(piece);
    }
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    code = deflate(&stream, bytes.empty() ? Z_FINISH : Z_NO_FLUSH);
    out.append(buffer.data(), buffer.size() - stream.avail_out);
  }
  deflateEnd(&stream);
  return out;
}

}  // namespace trestle::data
