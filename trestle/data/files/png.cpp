#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include <png.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/codecs.h"

// As for JPEG: libpng's errors longjmp to small functions without objects that have a destructor.
namespace trestle::data::codecs {
namespace {

struct Messages {
  char text[256] = "";
};

[[noreturn]] void on_png_error(png_structp png, png_const_charp message) {
  auto* messages = static_cast<Messages*>(png_get_error_ptr(png));
  std::snprintf(messages->text, sizeof messages->text, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Messages messages = {};
  std::string_view rest;  // bytes not read yet
  std::vector<png_bytep> rows = {};
  // From the header:
  png_uint_32 width = 0;
  png_uint_32 height = 0;
  int bits = 0;
  int colour = 0;
  bool has_transparency = false;

  explicit PngReader(std::string_view bytes) : rest(bytes) {}
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
};

void read_png_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader->rest.size()) png_error(png, "the file ends too early");
  std::memcpy(to, reader->rest.data(), count);
  reader->rest.remove_prefix(count);
}

bool read_png_header(PngReader& reader) {
  reader.png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader.messages, on_png_error, on_warning);
  if (reader.png == nullptr) return false;
  if (setjmp(png_jmpbuf(reader.png))) return false;
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) png_error(reader.png, "out of memory");
  png_set_read_fn(reader.png, &reader, read_png_bytes);
  png_set_crc_action(reader.png, PNG_CRC_ERROR_QUIT, PNG_CRC_QUIET_USE);
  png_read_info(reader.png, reader.info);
  png_get_IHDR(reader.png, reader.info, &reader.width, &reader.height, &reader.bits, &reader.colour,
               nullptr, nullptr, nullptr);
  reader.has_transparency = png_get_valid(reader.png, reader.info, PNG_INFO_tRNS) != 0;
  return true;
}

// Chooses libpng's conversions; returns the resulting number of channels, 0 on an error.
int set_conversions(PngReader& reader, Palette palette) {
  if (setjmp(png_jmpbuf(reader.png))) return 0;
  const bool colours = palette == Palette::Colours;
  if (reader.bits < 8) png_set_packing(reader.png);  // one byte a pixel, values unchanged
  if (reader.colour == PNG_COLOR_TYPE_PALETTE && colours) {
    png_set_palette_to_rgb(reader.png);
    if (reader.has_transparency) png_set_tRNS_to_alpha(reader.png);
  }
  if (reader.colour == PNG_COLOR_TYPE_GRAY && reader.bits < 8 && (reader.bits > 1 || colours)) {
    png_set_expand_gray_1_2_4_to_8(reader.png);
  }
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return png_get_channels(reader.png, reader.info);
}

// The caller sets the row pointers.
bool read_png_rows(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_read_image(reader.png, reader.rows.data());
  png_read_end(reader.png, nullptr);
  return true;
}

struct Writer {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Messages messages = {};
  std::string bytes = {};

  Writer() = default;
  ~Writer() { png_destroy_write_struct(&png, &info); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
};

void write_png_bytes(png_structp png, png_bytep from, std::size_t count) {
  auto* writer = static_cast<Writer*>(png_get_io_ptr(png));
  bool full = false;
  try {
    writer->bytes.append(reinterpret_cast<const char*>(from), count);
  } catch (const std::exception&) {  // must not unwind through libpng
    full = true;
  }
  if (full) png_error(png, "out of memory");
}

bool write_all(Writer& writer, const Image& image) {
  static constexpr int colour_types[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA,
                                         PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
  writer.png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, &writer.messages, on_png_error, on_warning);
  if (writer.png == nullptr) return false;
  if (setjmp(png_jmpbuf(writer.png))) return false;
  writer.info = png_create_info_struct(writer.png);
  if (writer.info == nullptr) png_error(writer.png, "out of memory");
  png_set_write_fn(writer.png, &writer, write_png_bytes, nullptr);
  png_set_IHDR(writer.png, writer.info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8, colour_types[image.channels - 1],
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer.png, writer.info);
  const std::size_t row_bytes = static_cast<std::size_t>(image.width) * image.channels;
  for (int y = 0; y < image.height; ++y) {
    png_write_row(writer.png, image.pixels.data() + y * row_bytes);
  }
  png_write_end(writer.png, nullptr);
  return true;
}

const char* png_reason(const Messages& messages) {
  return messages.text[0] == '\0' ? "out of memory" : messages.text;
}

}  // namespace

Image decode_png(const Source& source, const ReadImageOptions& options) {
  PngReader reader(source.bytes);
  if (!read_png_header(reader)) throw_unreadable(source, "PNG", png_reason(reader.messages));
  check_claimed_size(source, reader.width, reader.height, options.max_pixels);
  if (reader.bits == 16) {
    throw FormatError("the picture has 16 bits a channel",
                      {.file = std::string(source.name), .hint = "Convert it to 8 bits."});
  }
  const int channels = set_conversions(reader, options.palette);
  if (channels == 0) throw_unreadable(source, "PNG", png_reason(reader.messages));
  Image image =
      Image::blank(static_cast<int>(reader.width), static_cast<int>(reader.height), channels);
  const std::size_t row_bytes = static_cast<std::size_t>(image.width) * channels;
  for (int y = 0; y < image.height; ++y) reader.rows.push_back(image.pixels.data() + y * row_bytes);
  if (!read_png_rows(reader)) throw_unreadable(source, "PNG", png_reason(reader.messages));
  return image;
}

ImageSize png_size(const Source& source) {
  PngReader reader(source.bytes);
  if (!read_png_header(reader)) throw_unreadable(source, "PNG", png_reason(reader.messages));
  check_claimed_size(source, reader.width, reader.height, ReadImageOptions{}.max_pixels);
  return {static_cast<int>(reader.width), static_cast<int>(reader.height)};
}

// Reads chunk by chunk: the block may come after the pixels, and libpng would have to decode them.
std::string png_exif(const Source& source) {
  constexpr std::size_t signature = 8, head = 8;  // of the file; of a chunk: its length and name
  constexpr std::size_t around = head + 4;        // including the checksum after the data
  std::string_view rest = source.bytes.substr(std::min(signature, source.bytes.size()));
  while (rest.size() >= around) {
    const std::size_t length = png_get_uint_32(reinterpret_cast<png_const_bytep>(rest.data()));
    if (length > rest.size() - around) break;
    const std::string_view name = rest.substr(4, 4);
    if (name == "eXIf") return std::string(rest.substr(head, length));
    if (name == "IEND") break;  // later data do not belong to the picture
    rest.remove_prefix(around + length);
  }
  return "";
}

std::string encode_png(const Image& image, std::string_view name) {
  Writer writer;
  if (!write_all(writer, image)) {
    throw Error(text("cannot write PNG: ", png_reason(writer.messages)),
                {.file = std::string(name)});
  }
  return std::move(writer.bytes);
}

}  // namespace trestle::data::codecs
