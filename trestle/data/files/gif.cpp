#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <gif_lib.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/codecs.h"
#include "trestle/data/files/gif_lzw.h"

namespace trestle::data::codecs {
namespace {

int read_gif_bytes(GifFileType* gif, GifByteType* to, int count) {
  auto& rest = *static_cast<std::string_view*>(gif->UserData);
  const auto taken = std::min(rest.size(), static_cast<std::size_t>(std::max(count, 0)));
  std::memcpy(to, rest.data(), taken);
  rest.remove_prefix(taken);
  return static_cast<int>(taken);
}

const char* gif_reason(int code) {
  const char* words = GifErrorString(code);
  return words == nullptr ? "the file ends too early" : words;
}

struct CloseReader {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};
using GifReader = std::unique_ptr<GifFileType, CloseReader>;

GifReader open_gif(const Source& source, std::string_view& rest) {
  int code = 0;
  GifReader gif(DGifOpen(&rest, read_gif_bytes, &code));
  if (!gif) throw_unreadable(source, "GIF", gif_reason(code));
  return gif;
}

// Reads the records up to the header of the first frame; returns the frame's transparent index.
std::optional<int> find_first_frame(GifFileType& gif, const Source& source) {
  std::optional<int> transparent;
  for (;;) {
    GifRecordType record = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(&gif, &record) == GIF_ERROR) {
      throw_unreadable(source, "GIF", gif_reason(gif.Error));
    }
    if (record == TERMINATE_RECORD_TYPE)
      throw_unreadable(source, "GIF", "there is no picture in it");
    if (record == IMAGE_DESC_RECORD_TYPE) {
      if (DGifGetImageDesc(&gif) == GIF_ERROR)
        throw_unreadable(source, "GIF", gif_reason(gif.Error));
      return transparent;
    }
    if (record != EXTENSION_RECORD_TYPE) continue;
    int function = 0;
    GifByteType* block = nullptr;
    if (DGifGetExtension(&gif, &function, &block) == GIF_ERROR) {
      throw_unreadable(source, "GIF", gif_reason(gif.Error));
    }
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (function == GRAPHICS_EXT_FUNC_CODE &&
          DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK &&
          control.TransparentColor != NO_TRANSPARENT_COLOR) {
        transparent = control.TransparentColor;
      }
      if (DGifGetExtensionNext(&gif, &block) == GIF_ERROR) {
        throw_unreadable(source, "GIF", gif_reason(gif.Error));
      }
    }
  }
}

// A pass over a frame: its first row and the distance between its rows.
struct RowPass {
  int first, step;
};
constexpr RowPass single_pass[] = {{0, 1}};
constexpr RowPass interlaced_passes[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};

// The rows of a frame in the order of the file.
std::vector<int> row_order(int height, std::span<const RowPass> passes) {
  std::vector<int> order;
  order.reserve(static_cast<std::size_t>(height));
  for (const auto& [first, step] : passes) {
    for (int y = first; y < height; y += step) order.push_back(y);
  }
  return order;
}

// The frame's indices in the order of the file.
std::vector<std::uint8_t> read_frame(GifFileType& gif, const Source& source) {
  std::vector<std::uint8_t> indices(static_cast<std::size_t>(gif.Image.Width) * gif.Image.Height);
  int code_size = 0;
  GifByteType* block = nullptr;  // its length, then its bytes; null at the end
  if (DGifGetCode(&gif, &code_size, &block) == GIF_ERROR)
    throw_unreadable(source, "GIF", gif_reason(gif.Error));
  const auto step = [&] {
    if (DGifGetCodeNext(&gif, &block) == GIF_ERROR)
      throw_unreadable(source, "GIF", gif_reason(gif.Error));
  };
  bool first = true;
  const auto next_block = [&]() -> std::string_view {
    if (!std::exchange(first, false) && block != nullptr) step();
    if (block == nullptr) return {};
    return {reinterpret_cast<const char*>(block) + 1, block[0]};
  };
  const std::string_view problem = decode_lzw(code_size, next_block, indices);
  if (!problem.empty()) throw_unreadable(source, "GIF", problem);
  while (block != nullptr) step();  // a file cut off after its pixels is incomplete
  return indices;
}

Image to_colours(const Image& indices, const GifFileType& gif, const Source& source) {
  const ColorMapObject* map = gif.Image.ColorMap != nullptr ? gif.Image.ColorMap : gif.SColorMap;
  if (map == nullptr) throw_unreadable(source, "GIF", "it has no palette");
  Image image = Image::blank(indices.width, indices.height, 3);
  for (std::size_t i = 0; i < indices.pixels.size(); ++i) {
    const int index = indices.pixels[i];
    if (index >= map->ColorCount) {
      throw_unreadable(source, "GIF", text("a pixel has colour ", index, " of ", map->ColorCount));
    }
    const GifColorType& colour = map->Colors[index];
    image.pixels[i * 3] = colour.Red;
    image.pixels[i * 3 + 1] = colour.Green;
    image.pixels[i * 3 + 2] = colour.Blue;
  }
  return image;
}

struct CloseWriter {
  void operator()(GifFileType* gif) const { EGifCloseFile(gif, nullptr); }
};

int write_gif_bytes(GifFileType* gif, const GifByteType* from, int count) {
  try {
    static_cast<std::string*>(gif->UserData)->append(reinterpret_cast<const char*>(from), count);
  } catch (const std::exception&) {  // must not unwind through giflib
    return 0;
  }
  return count;
}

}  // namespace

Image decode_gif(const Source& source, const ReadImageOptions& options) {
  std::string_view rest = source.bytes;
  const GifReader gif = open_gif(source, rest);
  check_claimed_size(source, gif->SWidth, gif->SHeight, options.max_pixels);
  const std::optional<int> transparent = find_first_frame(*gif, source);
  const GifImageDesc& frame = gif->Image;
  if (frame.Width <= 0 || frame.Height <= 0) throw_unreadable(source, "GIF", "its frame is empty");
  // As in Pillow: a frame that extends beyond the screen's edge widens the picture. Pixels outside
  // of the frame are index 0, or the transparent index.
  const int width = std::max(gif->SWidth, frame.Left + frame.Width);
  const int height = std::max(gif->SHeight, frame.Top + frame.Height);
  check_claimed_size(source, width, height, options.max_pixels);
  Image image = Image::blank(width, height, 1);
  if (transparent) std::ranges::fill(image.pixels, static_cast<std::uint8_t>(*transparent));
  const std::vector<std::uint8_t> indices = read_frame(*gif, source);
  auto row = indices.begin();
  const auto passes = frame.Interlace ? std::span<const RowPass>(interlaced_passes) : single_pass;
  for (const int y : row_order(frame.Height, passes)) {
    std::copy_n(row, frame.Width, &image.at(frame.Left, frame.Top + y));
    row += frame.Width;
  }
  return options.palette == Palette::Colours ? to_colours(image, *gif, source) : image;
}

ImageSize gif_size(const Source& source) {
  std::string_view rest = source.bytes;
  const GifReader gif = open_gif(source, rest);
  find_first_frame(*gif, source);
  const GifImageDesc& frame = gif->Image;
  const ImageSize size{std::max(gif->SWidth, frame.Left + frame.Width),
                       std::max(gif->SHeight, frame.Top + frame.Height)};
  check_claimed_size(source, size.width, size.height, ReadImageOptions{}.max_pixels);
  return size;
}

std::string encode_gif_mask(const Image& mask, std::string_view name) {
  std::string bytes;
  int code = 0;
  std::unique_ptr<GifFileType, CloseWriter> gif(EGifOpen(&bytes, write_gif_bytes, &code));
  auto fail = [&](int why) {
    throw Error(text("cannot write GIF: ", gif_reason(why)), {.file = std::string(name)});
  };
  if (!gif) fail(code);
  constexpr GifColorType black_white[] = {{0, 0, 0}, {255, 255, 255}};
  const std::unique_ptr<ColorMapObject, decltype(&GifFreeMapObject)> map(
      GifMakeMapObject(2, black_white), GifFreeMapObject);
  if (!map) fail(E_GIF_ERR_NOT_ENOUGH_MEM);
  if (EGifPutScreenDesc(gif.get(), mask.width, mask.height, 1, 0, map.get()) == GIF_ERROR ||
      EGifPutImageDesc(gif.get(), 0, 0, mask.width, mask.height, false, nullptr) == GIF_ERROR) {
    fail(gif->Error);
  }
  std::vector<GifPixelType> row(
      static_cast<std::size_t>(mask.width));  // giflib masks the row in place
  for (int y = 0; y < mask.height; ++y) {
    std::copy_n(mask.pixels.data() + static_cast<std::size_t>(y) * mask.width, mask.width,
                row.begin());
    if (EGifPutLine(gif.get(), row.data(), mask.width) == GIF_ERROR) fail(gif->Error);
  }
  if (EGifCloseFile(gif.release(), &code) == GIF_ERROR) fail(code);
  return bytes;
}

}  // namespace trestle::data::codecs
