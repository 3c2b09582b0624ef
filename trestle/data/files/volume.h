#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// A volume in memory: channels of slices of rows of columns.
namespace trestle::data {

// A number for each dimension of a volume, in the order of its voxels in memory: slices (depth),
// rows (height), columns (width). A NIfTI file counts them as k, j, i.
using Sides = std::array<std::int64_t, 3>;

// The place of a volume's voxels in the scanner's room: the fields of a NIfTI header, unchanged, so
// that a file that is written with them lies where the file lay that they were read from.
struct VolumeSpace {
  std::array<double, 8> pixdim = {1, 1, 1, 1, 1, 1, 1, 1};
  int units = 2;  // xyzt_units: 2 = millimetres; 1 = metres, 3 = micrometres
  int qform_code = 0, sform_code = 0;
  std::array<double, 6> qform = {};  // quatern_b, c, d, qoffset_x, y, z
  std::array<double, 12> srow = {};  // srow_x, srow_y, srow_z

  // The distances of neighbouring slices, rows and columns, in the file's units.
  std::array<double, 3> spacing() const;
  // The rows of the matrix that maps (i, j, k, 1) to x, y, z, as NIfTI's standard has it: the sform
  // if there is one, else the qform, else the spacing alone.
  std::array<double, 12> affine() const;
};

// Whether all numbers of two affines are equal to a thousandth of the smallest spacing.
bool same_place(const VolumeSpace& a, const VolumeSpace& b);

// "2 x 1 x 1": slices, rows, columns, each with up to four significant digits.
std::string describe_spacing(const std::array<double, 3>& spacing);

struct VolumeInfo {
  std::int64_t channels = 1;
  Sides sides = {};
  std::optional<VolumeSpace> space = {};  // nothing for an array of NumPy

  std::int64_t voxels() const { return sides[0] * sides[1] * sides[2]; }
};

struct Volume : VolumeInfo {
  // value(c, z, y, x) = values[((c * depth + z) * height + y) * width + x]
  std::vector<float> values = {};
};

}  // namespace trestle::data
