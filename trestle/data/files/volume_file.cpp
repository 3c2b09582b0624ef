#include "trestle/data/files/volume_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/data/files/nifti.h"
#include "trestle/data/files/npy.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array volume_endings = {".nii.gz", ".nii", ".npy"};

[[noreturn]] void throw_unknown_kind(const fs::path& path) {
  throw FormatError("is no file of a volume",
                    {.file = path.string(),
                     .hint = "Volumes are .nii, .nii.gz and .npy files. DICOM folders are "
                             "converted with dcm2niix."});
}

VolumeInfo info_of(const NpyArray& array, const fs::path& path) {
  const std::vector<std::int64_t>& shape = array.shape;
  const bool known = (shape.size() == 3 || shape.size() == 4) &&
                     std::ranges::all_of(shape, [](std::int64_t side) { return side > 0; });
  if (!known)
    throw FormatError(text("the array has the shape [", join(shape, ", "), "]"),
                      {.file = path.string(),
                       .hint = "A volume is [slices, rows, columns] or [channels, slices, rows, "
                               "columns]."});
  const std::size_t first = shape.size() - 3;
  return {.channels = first == 0 ? 1 : shape[0],
          .sides = {shape[first], shape[first + 1], shape[first + 2]}};
}

// IEEE 754's 16 bits.
float half_to_float(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const double fraction = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? static_cast<float>(sign * HUGE_VAL) : std::nanf("");
  const double value =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(sign * value);
}

template <class T>
void copy_numbers(const std::string& bytes, std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T number;
    std::memcpy(&number, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(number);
  }
}

std::vector<float> values_of_array(const NpyArray& array) {
  std::vector<float> values(static_cast<std::size_t>(array.count()));
  const std::string &type = array.type, &bytes = array.bytes;
  if (type == "b1" || type == "u1") copy_numbers<std::uint8_t>(bytes, values);
  if (type == "i1") copy_numbers<std::int8_t>(bytes, values);
  if (type == "u2") copy_numbers<std::uint16_t>(bytes, values);
  if (type == "i2") copy_numbers<std::int16_t>(bytes, values);
  if (type == "u4") copy_numbers<std::uint32_t>(bytes, values);
  if (type == "i4") copy_numbers<std::int32_t>(bytes, values);
  if (type == "i8") copy_numbers<std::int64_t>(bytes, values);
  if (type == "f4") copy_numbers<float>(bytes, values);
  if (type == "f8") copy_numbers<double>(bytes, values);
  if (type == "f2")
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      values[i] = half_to_float(half);
    }
  return values;
}

void refuse_values_that_are_not_finite(const Volume& volume, const fs::path& path) {
  const auto bad =
      std::ranges::count_if(volume.values, [](float value) { return !std::isfinite(value); });
  if (bad == 0) return;
  throw FormatError(
      text(bad, " of its ", volume.values.size(), " values are not finite (NaN, inf)"),
      {.file = path.string(), .hint = "Replace them, for example in Python: numpy.nan_to_num(x)."});
}

Volume read_by_ending(const fs::path& path) {
  const std::string ending = volume_ending(path);
  if (ending.empty()) throw_unknown_kind(path);
  if (ending != ".npy") return read_nifti(path);
  const NpyArray array = read_npy(path.string());
  Volume volume{info_of(array, path)};
  volume.values = values_of_array(array);
  return volume;
}

}  // namespace

std::string volume_ending(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const char* ending : volume_endings)
    if (name.ends_with(ending)) return ending;
  return "";
}

std::string volume_id(const fs::path& path) {
  const std::string name = path.filename().string(), ending = volume_ending(path);
  return ending.empty() ? path.stem().string() : name.substr(0, name.size() - ending.size());
}

Volume read_volume(const fs::path& path) {
  Volume volume = read_by_ending(path);
  refuse_values_that_are_not_finite(volume, path);
  return volume;
}

VolumeInfo read_volume_info(const fs::path& path) {
  const std::string ending = volume_ending(path);
  if (ending.empty()) throw_unknown_kind(path);
  return ending == ".npy" ? info_of(read_npy_header(path), path) : read_nifti_info(path);
}

PairListing list_volume_pairs(const fs::path& images_folder, const fs::path& masks_folder,
                              const std::string& mask_suffix) {
  return list_pairs(images_folder, masks_folder, mask_suffix, volume_id);
}

void write_label_volume(const fs::path& path, const Volume& volume) {
  if (volume_ending(path) != ".npy") {
    write_nifti(path, volume, VoxelType::UInt8);
    return;
  }
  NpyArray array{.type = "u1", .shape = {volume.sides.begin(), volume.sides.end()}};
  for (const float value : volume.values)
    array.bytes.push_back(static_cast<char>(static_cast<std::uint8_t>(value)));
  write_npy(path, array);
}

}  // namespace trestle::data
