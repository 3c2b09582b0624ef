#include "trestle/view/chart/pen.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include "trestle/view/chart/canvas.h"
#include "trestle/view/svg_writer.h"

namespace trestle::view {

namespace {

constexpr double dash = 5, gap = 4;

// Cuts the line into dashes with gaps between them, continuing around its corners.
std::vector<std::pair<Spot, Spot>> dashes(const std::vector<Spot>& through) {
  std::vector<std::pair<Spot, Spot>> pieces;
  double at = 0;  // how far into dash and gap
  for (std::size_t i = 1; i < through.size(); ++i) {
    const Spot from = through[i - 1];
    const double dx = through[i].x - from.x, dy = through[i].y - from.y;
    const double length = std::hypot(dx, dy);
    for (double along = 0; along < length;) {
      const double left = (at < dash ? dash : dash + gap) - at;
      const double end = std::min(along + left, length);
      const auto place = [&](double distance) {
        return Spot{from.x + dx * distance / length, from.y + dy * distance / length};
      };
      if (at < dash) pieces.emplace_back(place(along), place(end));
      at = std::fmod(at + end - along, dash + gap);
      if (end - along < 1e-9) at = at < dash ? dash : 0;  // rounding must not stop it
      along = end;
    }
  }
  return pieces;
}

Colour pixel_colour(std::string_view name) {
  const long rgb = std::strtol(std::string(name.substr(1)).c_str(), nullptr, 16);
  return {static_cast<std::uint8_t>(rgb >> 16 & 0xff), static_cast<std::uint8_t>(rgb >> 8 & 0xff),
          static_cast<std::uint8_t>(rgb & 0xff)};
}

}  // namespace

struct SvgPen::Writer {
  SvgWriter svg;
};

SvgPen::SvgPen(double width, double height, const std::string& title)
    : writer_(new Writer{SvgWriter({.width = width, .height = height, .title = title})}) {}
SvgPen::~SvgPen() = default;

void SvgPen::line(const std::vector<Spot>& through, std::string_view colour, double width,
                  Stroke stroke) {
  Path path;
  for (std::size_t i = 0; i < through.size(); ++i)
    i == 0 ? path.move(through[i].x, through[i].y) : path.line(through[i].x, through[i].y);
  const std::string dashes =
      std::to_string(static_cast<int>(dash)) + " " + std::to_string(static_cast<int>(gap));
  writer_->svg.element("path", {{"d", path.text()},
                                {"fill", "none"},
                                {"stroke", colour},
                                {"stroke-width", width},
                                {"stroke-linejoin", "round"},
                                {"stroke-dasharray", stroke == Stroke::Dashed ? dashes : "none"}});
}

void SvgPen::dot(Spot at, double radius, std::string_view colour) {
  writer_->svg.element("circle", {{"cx", at.x}, {"cy", at.y}, {"r", radius}, {"fill", colour}});
}

void SvgPen::box(Spot corner, double width, double height, std::string_view colour) {
  writer_->svg.element(
      "rect",
      {{"x", corner.x}, {"y", corner.y}, {"width", width}, {"height", height}, {"fill", colour}});
}

void SvgPen::words(Spot at, std::string_view text, const WordStyle& style) {
  using Align = WordStyle::Align;
  writer_->svg.text(at.x, at.y, text,
                    {{"font-size", style.size},
                     {"font-weight", style.strong ? 600.0 : 400.0},
                     {"fill", style.colour},
                     {"text-anchor", style.align == Align::Left     ? "start"
                                     : style.align == Align::Middle ? "middle"
                                                                    : "end"}});
}

std::string SvgPen::finish() && { return std::move(writer_->svg).finish(); }

struct PixelPen::Drawing {
  static constexpr double scale = 2;
  Canvas canvas;
  std::map<int, Font> fonts = {};

  static int pixels(double length) { return static_cast<int>(std::lround(scale * length)); }
  static Spot scaled(Spot at) { return {scale * at.x, scale * at.y}; }
  const Font& font(double size) {
    return fonts.try_emplace(pixels(size), pixels(size)).first->second;
  }
};

PixelPen::PixelPen(double width, double height)
    : drawing_(new Drawing{Canvas(Drawing::pixels(width), Drawing::pixels(height))}) {}
PixelPen::~PixelPen() = default;

void PixelPen::line(const std::vector<Spot>& through, std::string_view colour, double width,
                    Stroke stroke) {
  std::vector<std::pair<Spot, Spot>> pieces;
  if (stroke == Stroke::Dashed) {
    pieces = dashes(through);
  } else {
    for (std::size_t i = 1; i < through.size(); ++i)
      pieces.emplace_back(through[i - 1], through[i]);
  }
  for (const auto& [from, to] : pieces) {
    const Spot a = Drawing::scaled(from), b = Drawing::scaled(to);
    drawing_->canvas.line(a.x, a.y, b.x, b.y, Drawing::scale * width, pixel_colour(colour));
  }
}

void PixelPen::dot(Spot at, double radius, std::string_view colour) {
  const Spot a = Drawing::scaled(at);
  drawing_->canvas.line(a.x, a.y, a.x, a.y, 2 * Drawing::scale * radius, pixel_colour(colour));
}

void PixelPen::box(Spot corner, double width, double height, std::string_view colour) {
  const int x = Drawing::pixels(corner.x), y = Drawing::pixels(corner.y);
  drawing_->canvas.fill(x, y, Drawing::pixels(corner.x + width) - x,
                        Drawing::pixels(corner.y + height) - y, pixel_colour(colour));
}

void PixelPen::words(Spot at, std::string_view text, const WordStyle& style) {
  using Align = WordStyle::Align;
  const Font& font = drawing_->font(style.size);
  const int width = font.width(text);
  const int left = Drawing::pixels(at.x) - (style.align == Align::Left     ? 0
                                            : style.align == Align::Middle ? width / 2
                                                                           : width);
  // Four fifths of the height of this font are above the baseline.
  drawing_->canvas.write(font, text, left, Drawing::pixels(at.y) - font.height() * 4 / 5,
                         pixel_colour(style.colour));
}

const data::Image& PixelPen::image() const { return drawing_->canvas.image(); }

}  // namespace trestle::view
