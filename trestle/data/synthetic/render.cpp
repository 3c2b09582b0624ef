#include "trestle/data/synthetic/render.h"

#include <algorithm>
#include <cstddef>

namespace trestle::data::render {
namespace {

// A corner on the screen: pixels, and the inverse of its depth, which is linear there.
struct Corner {
  double x;
  double y;
  double inverse_depth;
};

Colour shade(const Face& face, const Camera& camera, const Light& light) {
  Vec normal = unit(cross(face.points[1] - face.points[0], face.points[2] - face.points[0]));
  const Vec view = unit(camera.position() - face.points[0]);
  if (dot(normal, view) < 0) normal = normal * -1;
  const Vec towards = unit(light.towards);
  const double facing = dot(normal, towards);
  const double bright =
      light.ambient + (1 - light.ambient) * std::max(0.0, facing) + 0.1 * normal.z;
  const Vec half = unit(towards + view);
  const double shine = face.gloss * std::pow(std::max(0.0, dot(normal, half)), 12);
  return face.colour * bright + Colour{shine, shine, shine};
}

double edge(const Corner& a, const Corner& b, double x, double y) {
  return (b.x - a.x) * (y - a.y) - (b.y - a.y) * (x - a.x);
}

struct Screen {
  int width;
  int height;
  std::vector<float> nearest;  // inverse depth, 0 for no face
  std::vector<int> face;       // index of the visible face
};

void fill_triangle(Screen& screen, const Corner& a, const Corner& b, const Corner& c, int face) {
  const double area = edge(a, b, c.x, c.y);
  if (std::abs(area) < 1e-9) return;
  auto range = [](double low, double high, int size) {
    return std::pair{std::clamp(static_cast<int>(std::floor(low)), 0, size),
                     std::clamp(static_cast<int>(std::ceil(high)) + 1, 0, size)};
  };
  const auto [x0, x1] = range(std::min({a.x, b.x, c.x}), std::max({a.x, b.x, c.x}), screen.width);
  const auto [y0, y1] = range(std::min({a.y, b.y, c.y}), std::max({a.y, b.y, c.y}), screen.height);
  for (int y = y0; y < y1; ++y) {
    for (int x = x0; x < x1; ++x) {
      const double px = x + 0.5;
      const double py = y + 0.5;
      const double wa = edge(b, c, px, py) / area;
      const double wb = edge(c, a, px, py) / area;
      const double wc = 1 - wa - wb;
      if (wa < 0 || wb < 0 || wc < 0) continue;
      const auto near =
          static_cast<float>(wa * a.inverse_depth + wb * b.inverse_depth + wc * c.inverse_depth);
      const std::size_t at = static_cast<std::size_t>(y) * screen.width + x;
      if (near <= screen.nearest[at]) continue;
      screen.nearest[at] = near;
      screen.face[at] = face;
    }
  }
}

}  // namespace

Camera::Axes Camera::axes() const {
  const double pitch = std::atan2(height - aim, distance);
  return {{1, 0, 0}, {0, std::sin(pitch), std::cos(pitch)}, {0, std::cos(pitch), -std::sin(pitch)}};
}

Rendering draw(const std::vector<Face>& faces, const Camera& camera, const Light& light, int width,
               int height, int samples) {
  Screen screen{width * samples, height * samples, {}, {}};
  const std::size_t points = static_cast<std::size_t>(screen.width) * screen.height;
  screen.nearest.assign(points, 0);
  screen.face.assign(points, -1);
  const auto [right, up, forward] = camera.axes();
  std::vector<Colour> shades;
  std::vector<Corner> corners;
  for (std::size_t f = 0; f < faces.size(); ++f) {
    shades.push_back(shade(faces[f], camera, light));
    corners.clear();
    for (const Vec& point : faces[f].points) {
      const Vec d = point - camera.position();
      const double scale = camera.focal / dot(d, forward);
      corners.push_back({samples * (camera.centre_x + scale * dot(d, right)),
                         samples * (camera.centre_y - scale * dot(d, up)), 1 / dot(d, forward)});
    }
    for (std::size_t i = 2; i < corners.size(); ++i) {
      fill_triangle(screen, corners[0], corners[i - 1], corners[i], static_cast<int>(f));
    }
  }
  const std::size_t pixels = static_cast<std::size_t>(width) * height;
  Rendering layer{std::vector<Colour>(pixels), std::vector<float>(pixels)};
  const double share = 1.0 / (samples * samples);
  for (std::size_t at = 0; at < points; ++at) {
    if (screen.face[at] < 0) continue;
    const std::size_t y = at / screen.width / samples;
    const std::size_t x = at % screen.width / samples;
    const std::size_t pixel = y * width + x;
    layer.colour[pixel] =
        layer.colour[pixel] + shades[static_cast<std::size_t>(screen.face[at])] * share;
    layer.cover[pixel] += static_cast<float>(share);
  }
  return layer;
}

}  // namespace trestle::data::render
