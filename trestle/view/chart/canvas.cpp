#include "trestle/view/chart/canvas.h"

#include <algorithm>
#include <cmath>

#include "trestle/data/files/resize.h"

namespace trestle::view {

Colour viridis(double t) {
  static constexpr Colour colours[] = {{68, 1, 84},    {71, 44, 122},  {59, 81, 139},
                                       {44, 113, 142}, {33, 144, 141}, {39, 173, 129},
                                       {92, 200, 99},  {170, 220, 50}, {253, 231, 37}};
  const double place = std::clamp(t, 0.0, 1.0) * 8;
  const int left = std::min(static_cast<int>(place), 7);
  Colour mixed;
  for (int c = 0; c < 3; ++c)
    mixed[c] = static_cast<std::uint8_t>(
        std::lround(colours[left][c] + (place - left) * (colours[left + 1][c] - colours[left][c])));
  return mixed;
}

Canvas::Canvas(int width, int height, Colour background)
    : image_(data::Image::blank(width, height, 3)) {
  fill(0, 0, width, height, background);
}

void Canvas::fill(int x, int y, int width, int height, Colour colour) {
  for (int row = std::max(y, 0); row < std::min(y + height, image_.height); ++row)
    for (int column = std::max(x, 0); column < std::min(x + width, image_.width); ++column)
      for (int c = 0; c < 3; ++c) image_.at(column, row, c) = colour[c];
}

void Canvas::outline(int x, int y, int width, int height, Colour colour) {
  fill(x, y, width, 1, colour);
  fill(x, y + height - 1, width, 1, colour);
  fill(x, y, 1, height, colour);
  fill(x + width - 1, y, 1, height, colour);
}

void Canvas::draw(const data::Image& image, int x, int y) {
  for (int row = 0; row < image.height; ++row)
    for (int column = 0; column < image.width; ++column) {
      if (x + column < 0 || y + row < 0 || x + column >= image_.width || y + row >= image_.height)
        continue;
      for (int c = 0; c < 3; ++c)
        image_.at(x + column, y + row, c) = image.at(column, row, image.channels >= 3 ? c : 0);
    }
}

void Canvas::mix(int x, int y, Colour colour, std::uint8_t cover) {
  if (x < 0 || y < 0 || x >= image_.width || y >= image_.height) return;
  for (int c = 0; c < 3; ++c) {
    std::uint8_t& sample = image_.at(x, y, c);
    sample = static_cast<std::uint8_t>((colour[c] * cover + sample * (255 - cover) + 127) / 255);
  }
}

void Canvas::line(double x0, double y0, double x1, double y1, double width, Colour colour) {
  const double reach = width / 2 + 1;
  const double dx = x1 - x0, dy = y1 - y0;
  const double length = dx * dx + dy * dy;
  const auto pixel = [](double at, int most) {
    return static_cast<int>(std::clamp(std::floor(at), -1.0, static_cast<double>(most)));
  };
  for (int y = pixel(std::min(y0, y1) - reach, image_.height);
       y <= pixel(std::max(y0, y1) + reach, image_.height); ++y)
    for (int x = pixel(std::min(x0, x1) - reach, image_.width);
         x <= pixel(std::max(x0, x1) + reach, image_.width); ++x) {
      const double px = x + 0.5 - x0, py = y + 0.5 - y0;
      const double along = length > 0 ? std::clamp((px * dx + py * dy) / length, 0.0, 1.0) : 0.0;
      const double distance = std::hypot(px - along * dx, py - along * dy);
      const double cover = std::clamp(width / 2 + 0.5 - distance, 0.0, 1.0);
      if (cover > 0) mix(x, y, colour, static_cast<std::uint8_t>(std::lround(255 * cover)));
    }
}

void Canvas::write(const Font& font, std::string_view words, int x, int y, Colour colour) {
  font.draw(words, [&](int dx, int dy, std::uint8_t cover) { mix(x + dx, y + dy, colour, cover); });
}

data::Image fit(const data::Image& image, int width, int height) {
  const int times = std::min(width / std::max(image.width, 1), height / std::max(image.height, 1));
  if (times >= 1) return data::resize_nearest(image, image.width * times, image.height * times);
  const double shrink = std::min(static_cast<double>(width) / image.width,
                                 static_cast<double>(height) / image.height);
  return data::resize_nearest(image, std::max(1, static_cast<int>(image.width * shrink)),
                              std::max(1, static_cast<int>(image.height * shrink)));
}

}  // namespace trestle::view
