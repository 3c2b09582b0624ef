#pragma once

#include <cmath>
#include <vector>

// A tiny renderer for synthetic pictures: flat-shaded polygons, one light, a depth buffer. Internal
// to data/synthetic.
//
// The world: x to the right, y away from the viewer, z up, metres, the ground at z = 0.
namespace trestle::data::render {

struct Vec {
  double x = 0;
  double y = 0;
  double z = 0;

  Vec operator+(const Vec& o) const { return {x + o.x, y + o.y, z + o.z}; }
  Vec operator-(const Vec& o) const { return {x - o.x, y - o.y, z - o.z}; }
  Vec operator*(double s) const { return {x * s, y * s, z * s}; }
};

inline double dot(const Vec& a, const Vec& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
inline Vec cross(const Vec& a, const Vec& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
inline Vec unit(const Vec& a) { return a * (1 / std::sqrt(dot(a, a))); }

// Red, green, blue in x, y, z, from 0 to 1.
using Colour = Vec;

// A flat convex polygon.
struct Face {
  std::vector<Vec> points;
  Colour colour;
  double gloss = 0;  // strength of the light's reflection
};

// Placed at (0, -distance, height) and directed to (0, 0, aim).
struct Camera {
  double distance = 8;
  double height = 1.4;
  double aim = 0.7;
  double focal = 1;  // pixels
  double centre_x = 0;
  double centre_y = 0;

  Vec position() const { return {0, -distance, height}; }

  // The camera's right, up and forward directions.
  struct Axes {
    Vec right, up, forward;
  };
  Axes axes() const;
};

struct Light {
  Vec towards = {-0.4, -0.6, 0.7};  // from the scene to the light
  double ambient = 0.5;
};

// The rendered faces.
struct Rendering {
  std::vector<Colour> colour;  // a pixel's colour times its cover
  std::vector<float> cover;    // share of a pixel that the faces cover, 0 to 1
};

// Renders with samples x samples points in each pixel.
Rendering draw(const std::vector<Face>& faces, const Camera& camera, const Light& light, int width,
               int height, int samples);

}  // namespace trestle::data::render
