#pragma once

#include <string>
#include <string_view>

#include "trestle/data/files/image_file.h"

// One pair of functions for each image format. Internal to image_file.
namespace trestle::data::codecs {

// The bytes of a file and its name in messages.
struct Source {
  std::string_view bytes;
  std::string_view name;
};

Image decode_jpeg(const Source& source, const ReadImageOptions& options);
Image decode_png(const Source& source, const ReadImageOptions& options);
Image decode_gif(const Source& source, const ReadImageOptions& options);

ImageSize jpeg_size(const Source& source);
ImageSize png_size(const Source& source);
ImageSize gif_size(const Source& source);

// The picture's Exif block, or nothing.
std::string jpeg_exif(const Source& source);
std::string png_exif(const Source& source);

std::string encode_png(const Image& image, std::string_view name);
std::string encode_jpeg(const Image& image, int quality, std::string_view name);
std::string encode_gif_mask(const Image& mask, std::string_view name);

// Throws FormatError if the header of `source` has a size that is empty, larger than `max_pixels`,
// or larger than this number of bytes could encode in any of the three formats.
void check_claimed_size(const Source& source, long long width, long long height,
                        std::int64_t max_pixels);

// Throws FormatError "<name>: not a readable <format> file: <reason>".
[[noreturn]] void throw_unreadable(const Source& source, std::string_view format,
                                   std::string_view reason);

}  // namespace trestle::data::codecs
