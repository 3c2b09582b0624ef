#include "trestle/data/files/volume.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trestle/base/text.h"

namespace trestle::data {
namespace {

// The rotation of a unit quaternion whose first number is not negative (NIfTI's "method 2").
std::array<double, 12> affine_of_qform(const VolumeSpace& space) {
  const auto [b, c, d, x, y, z] = space.qform;
  const double rest = 1 - (b * b + c * c + d * d);
  double a = 0, p = b, q = c, r = d;
  if (rest < 1e-7) {  // rounding: a rotation by half a turn
    const double length = std::sqrt(b * b + c * c + d * d);
    p /= length, q /= length, r /= length;
  } else {
    a = std::sqrt(rest);
  }
  const double dx = space.pixdim[1], dy = space.pixdim[2];
  const double dz = space.pixdim[0] < 0 ? -space.pixdim[3] : space.pixdim[3];
  return {(a * a + p * p - q * q - r * r) * dx,
          2 * (p * q - a * r) * dy,
          2 * (p * r + a * q) * dz,
          x,
          2 * (p * q + a * r) * dx,
          (a * a + q * q - p * p - r * r) * dy,
          2 * (q * r - a * p) * dz,
          y,
          2 * (p * r - a * q) * dx,
          2 * (q * r + a * p) * dy,
          (a * a + r * r - q * q - p * p) * dz,
          z};
}

}  // namespace

std::array<double, 3> VolumeSpace::spacing() const {
  return {std::abs(pixdim[3]), std::abs(pixdim[2]), std::abs(pixdim[1])};
}

std::array<double, 12> VolumeSpace::affine() const {
  if (sform_code > 0) return srow;
  if (qform_code > 0) return affine_of_qform(*this);
  return {pixdim[1], 0, 0, 0, 0, pixdim[2], 0, 0, 0, 0, pixdim[3], 0};
}

bool same_place(const VolumeSpace& a, const VolumeSpace& b) {
  const std::array<double, 3> sides = a.spacing();
  const double allowed = 1e-3 * *std::ranges::min_element(sides);
  const std::array<double, 12> first = a.affine(), second = b.affine();
  for (std::size_t i = 0; i < first.size(); ++i)
    if (!(std::abs(first[i] - second[i]) <= allowed)) return false;
  return true;
}

std::string describe_spacing(const std::array<double, 3>& spacing) {
  std::vector<std::string> words;
  for (const double side : spacing) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.4g", side);
    words.emplace_back(digits);
  }
  return join(words, " x ");
}

}  // namespace trestle::data
