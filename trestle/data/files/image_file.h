#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "trestle/data/files/image.h"

// Picture files: JPEG (libjpeg), PNG (libpng) and GIF (giflib), recognized by their first bytes,
// not by their names.
//
// Samples equal those of Python's numpy.asarray(PIL.Image.open(path)), bit for bit: JPEG with the
// exact integer inverse DCT and smooth chroma up-sampling; GIF with the first frame, as palette
// indices.
//
// FormatError with the file's name and the reason reports a file that is damaged, cut short or of
// an unsupported kind, or whose header has more pixels than `max_pixels` or than its length could
// encode. The size is checked before memory is allocated. No call here aborts, prints or leaks.
namespace trestle::data {

// The result of reading a picture with a palette.
enum class Palette {
  // 1 channel: the index of each pixel's colour. For masks: a class id.
  Indices,
  // 3 channels (4 for a PNG palette with transparency): the colours themselves. For pictures.
  Colours,
};

// The camera's orientation in the Exif block of JPEG and PNG.
enum class Orientation {
  AsStored,  // ignore it
  Upright,   // turn the picture, as Pillow's ImageOps.exif_transpose
};

struct ReadImageOptions {
  Palette palette = Palette::Indices;
  std::int64_t max_pixels = 100'000'000;  // 300 MB as RGB
  Orientation orientation = Orientation::AsStored;
};

// Reads a picture. JPEG: 1 or 3 channels. PNG: 1 to 4 channels of 8 bits; grey of 1 bit gives 0 and
// 1 under Palette::Indices, 0 and 255 under Palette::Colours; grey of 2 or 4 bits is stretched to
// 0..255; 16 bits are an error. GIF: 1 channel of indices, or 3 of colours. Throws FormatError, or
// FileError if the file cannot be opened.
Image read_image(const std::filesystem::path& path, const ReadImageOptions& options = {});

// The same for bytes in memory; `name` is the file's name in messages.
Image decode_image(std::string_view bytes, std::string_view name,
                   const ReadImageOptions& options = {});

struct ImageSize {
  int width = 0;
  int height = 0;
};

// Reads only the size, from the header, without decoding. Throws like read_image.
ImageSize read_image_size(const std::filesystem::path& path,
                          Orientation orientation = Orientation::AsStored);

// Writers. A file is written completely or not at all. They throw UsageError for an image whose
// `pixels` do not fit its size, that has no pixels, or a number of channels that the format lacks;
// FileError if the system rejects the write.
void write_png(const std::filesystem::path& path, const Image& image);  // 1 to 4 channels

// `quality` 1 to 100; 1 or 3 channels; chroma halved in both directions, as cameras do.
void write_jpeg(const std::filesystem::path& path, const Image& image, int quality = 90);

// A mask in Carvana's format: 1-bit GIF, index 0 black (background), index 1 white.
// `mask` has 1 channel of 0 and 1.
void write_gif_mask(const std::filesystem::path& path, const Image& mask);

}  // namespace trestle::data
