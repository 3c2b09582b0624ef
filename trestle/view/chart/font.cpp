#include "trestle/view/chart/font.h"

#include <ft2build.h>
#include FT_FREETYPE_H

#include <algorithm>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"

// The font file that CMake found (TRESTLE_FONT), included by the assembler.
extern "C" {
extern const unsigned char trestle_font_begin[];
extern const unsigned char trestle_font_end[];
}
asm(".pushsection .rodata\n"
    ".global trestle_font_begin\n"
    ".global trestle_font_end\n"
    "trestle_font_begin:\n"
    ".incbin \"" TRESTLE_FONT
    "\"\n"
    "trestle_font_end:\n"
    ".byte 0\n"
    ".popsection\n");

namespace trestle::view {

namespace {

constexpr char32_t replacement = 0xfffd;

void check_freetype(FT_Error error, const char* what) {
  if (error != 0) throw StateError(text("FreeType cannot ", what, " (its error ", error, ")"));
}

// Removes one character from the front of UTF-8 text.
char32_t next_character(std::string_view& words) {
  const std::size_t length = utf8_length(words, 0);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(words[i]); };
  char32_t character = length == 0   ? replacement
                       : length == 1 ? byte(0)
                                     : byte(0) & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) character = character << 6 | (byte(i) & 0x3fU);
  words.remove_prefix(std::max<std::size_t>(length, 1));
  return character;
}

}  // namespace

struct Font::Face {
  FT_Library library = nullptr;
  FT_Face face = nullptr;

  ~Face() {
    FT_Done_Face(face);
    FT_Done_FreeType(library);
  }

  // The glyph as a bitmap; valid until the next one.
  FT_GlyphSlot load(char32_t character) const {
    check_freetype(FT_Load_Char(face, character, FT_LOAD_RENDER), "draw a letter");
    return face->glyph;
  }
  int ascender() const { return static_cast<int>((face->size->metrics.ascender + 63) >> 6); }
};

Font::Font(int pixels) : face_(std::make_unique<Face>()) {
  check_freetype(FT_Init_FreeType(&face_->library), "start");
  check_freetype(FT_New_Memory_Face(face_->library, trestle_font_begin,
                                    trestle_font_end - trestle_font_begin, 0, &face_->face),
                 "read the font that trestle was built with");
  check_freetype(FT_Set_Pixel_Sizes(face_->face, 0, static_cast<FT_UInt>(pixels)),
                 "draw letters of this size");
}

Font::~Font() = default;

int Font::width(std::string_view words) const {
  FT_Pos width = 0;
  while (!words.empty()) width += face_->load(next_character(words))->advance.x;
  return static_cast<int>((width + 63) >> 6);
}

int Font::height() const {
  return face_->ascender() - static_cast<int>(face_->face->size->metrics.descender >> 6);
}

void Font::draw(std::string_view words, const Dot& dot) const {
  FT_Pos left = 0;
  while (!words.empty()) {
    const FT_GlyphSlot glyph = face_->load(next_character(words));
    const FT_Bitmap bitmap = glyph->bitmap;
    // A copy, since `dot` may ask the font for a width, which loads another glyph.
    const std::vector<std::uint8_t> covers(
        bitmap.buffer, bitmap.buffer + static_cast<std::size_t>(bitmap.rows) * bitmap.pitch);
    const int x = static_cast<int>((left + 32) >> 6) + glyph->bitmap_left;
    const int y = face_->ascender() - glyph->bitmap_top;
    const FT_Pos advance = glyph->advance.x;
    for (int row = 0; row < static_cast<int>(bitmap.rows); ++row)
      for (int column = 0; column < static_cast<int>(bitmap.width); ++column) {
        const std::uint8_t cover = covers[static_cast<std::size_t>(row * bitmap.pitch + column)];
        if (cover > 0) dot(x + column, y + row, cover);
      }
    left += advance;
  }
}

}  // namespace trestle::view
