#include "trestle/data/files/image_file.h"

#include <algorithm>
#include <limits>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/files/codecs.h"
#include "trestle/data/files/exif.h"

namespace trestle::data {
namespace codecs {

void throw_unreadable(const Source& source, std::string_view format, std::string_view reason) {
  throw FormatError(text("not a readable ", format, " file: ", reason),
                    {.file = std::string(source.name),
                     .hint = "The file is damaged or incomplete: copy or download it again."});
}

void check_claimed_size(const Source& source, long long width, long long height,
                        std::int64_t max_pixels) {
  Where where{.file = std::string(source.name),
              .hint = "The file is probably damaged: copy or download it again."};
  if (width <= 0 || height <= 0) {
    throw FormatError(text("the picture has ", width, " x ", height, " pixels: nothing to read"),
                      where);
  }
  // The densest of the three formats is a PNG of 1 bit a pixel: deflate compresses to 1/1032 at
  // best.
  constexpr long long pixels_per_byte = 8 * 1032;
  const auto bytes = static_cast<long long>(source.bytes.size());
  const long long limit = std::min<long long>(max_pixels, bytes * pixels_per_byte);
  if (height > limit / width) {
    if (limit == max_pixels) where.hint = "Make the picture smaller first, or cut it into several.";
    throw FormatError(
        text("the header has ", width, " x ", height, " pixels, more than ",
             limit == max_pixels ? "the limit of " : "its length can hold: ", format_count(limit)),
        where);
  }
}

namespace {

enum class Format { Jpeg, Png, Gif };

// The name of a kind of picture that is recognized but not read; empty for anything else.
std::string_view unread_kind(std::string_view bytes) {
  const std::string_view brand = bytes.size() >= 12 ? bytes.substr(4, 8) : "";
  if (bytes.starts_with("BM")) return "BMP";
  if (bytes.starts_with("RIFF") &&
      bytes.substr(std::min<std::size_t>(8, bytes.size())).starts_with("WEBP"))
    return "WebP";
  if (bytes.starts_with(std::string_view("II*\0", 4)) ||
      bytes.starts_with(std::string_view("MM\0*", 4)))
    return "TIFF";
  if (brand.starts_with("ftypavif")) return "AVIF";
  if (brand.starts_with("ftyphei") || brand.starts_with("ftypmif")) return "HEIC";
  if (bytes.starts_with(std::string_view("\0\0\0\x0cjP  ", 8))) return "JPEG 2000";
  if (bytes.starts_with("<svg") || bytes.starts_with("<?xml")) return "SVG";
  return "";
}

Format format_of(const Source& source) {
  const std::string_view bytes = source.bytes;
  if (bytes.starts_with("\xff\xd8\xff")) return Format::Jpeg;
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return Format::Png;
  if (bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a")) return Format::Gif;
  if (const std::string_view kind = unread_kind(bytes); !kind.empty())
    throw FormatError(text(kind == "AVIF" || kind == "SVG" ? "an " : "a ", kind,
                           " picture, a kind that is not read"),
                      {.file = std::string(source.name),
                       .hint = "JPEG, PNG and GIF can be read: convert it, masks to PNG."});
  throw FormatError(bytes.empty() ? "the file is empty" : "not a picture file",
                    {.file = std::string(source.name), .hint = "JPEG, PNG and GIF can be read."});
}

void check_writable(const Image& image, std::string_view name, std::string_view format,
                    std::initializer_list<int> channels) {
  const Where where{.file = std::string(name)};
  const auto samples = static_cast<std::size_t>(std::max(image.width, 0)) *
                       std::max(image.height, 0) * std::max(image.channels, 0);
  if (samples == 0 || samples != image.pixels.size()) {
    throw UsageError(text("cannot write an image of ", image.width, " x ", image.height, " x ",
                          image.channels, " with ", image.pixels.size(), " samples"),
                     where);
  }
  if (std::ranges::find(channels, image.channels) == channels.end()) {
    throw UsageError(text("cannot write ", image.channels, " channels as ", format,
                          " (possible: ", join(channels, ", "), ")"),
                     where);
  }
  constexpr int max_side = 65'500;  // JPEG's limit; GIF's is 65,535
  if (image.width > max_side || image.height > max_side) {
    throw UsageError(text("cannot write ", image.width, " x ", image.height,
                          " pixels: a side has at most ", max_side),
                     where);
  }
}

int orientation_of(const Source& source, Orientation wanted) {
  if (wanted == Orientation::AsStored) return 1;
  switch (format_of(source)) {
    case Format::Jpeg:
      return exif_orientation(jpeg_exif(source));
    case Format::Png:
      return exif_orientation(png_exif(source));
    case Format::Gif:
      break;
  }
  return 1;
}

Image decode(const Source& source, const ReadImageOptions& options) {
  switch (format_of(source)) {
    case Format::Jpeg:
      return decode_jpeg(source, options);
    case Format::Png:
      return decode_png(source, options);
    case Format::Gif:
      break;
  }
  return decode_gif(source, options);
}

ImageSize size_of(const Source& source) {
  switch (format_of(source)) {
    case Format::Jpeg:
      return jpeg_size(source);
    case Format::Png:
      return png_size(source);
    case Format::Gif:
      break;
  }
  return gif_size(source);
}

}  // namespace
}  // namespace codecs

Image decode_image(std::string_view bytes, std::string_view name, const ReadImageOptions& options) {
  const codecs::Source source{bytes, name};
  return turn_upright(codecs::decode(source, options),
                      codecs::orientation_of(source, options.orientation));
}

Image read_image(const std::filesystem::path& path, const ReadImageOptions& options) {
  const std::string bytes = read_file(path);
  return decode_image(bytes, path.string(), options);
}

ImageSize read_image_size(const std::filesystem::path& path, Orientation orientation) {
  const std::string bytes = read_file(path);
  const std::string name = path.string();
  const codecs::Source source{bytes, name};
  const ImageSize size = codecs::size_of(source);
  return turns_sideways(codecs::orientation_of(source, orientation))
             ? ImageSize{size.height, size.width}
             : size;
}

void write_png(const std::filesystem::path& path, const Image& image) {
  codecs::check_writable(image, path.string(), "PNG", {1, 2, 3, 4});
  write_file(path, codecs::encode_png(image, path.string()));
}

void write_jpeg(const std::filesystem::path& path, const Image& image, int quality) {
  codecs::check_writable(image, path.string(), "JPEG", {1, 3});
  if (quality < 1 || quality > 100) {
    throw UsageError(text("JPEG quality ", quality, " is not between 1 and 100"),
                     {.file = path.string()});
  }
  write_file(path, codecs::encode_jpeg(image, quality, path.string()));
}

void write_gif_mask(const std::filesystem::path& path, const Image& mask) {
  codecs::check_writable(mask, path.string(), "a GIF mask", {1});
  const auto worst = std::ranges::max(mask.pixels);
  if (worst > 1) {
    throw UsageError(text("a 1-bit mask has the values 0 and 1, but this one has ", int{worst}),
                     {.file = path.string()});
  }
  write_file(path, codecs::encode_gif_mask(mask, path.string()));
}

}  // namespace trestle::data
