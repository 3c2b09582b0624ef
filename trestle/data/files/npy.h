#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// NumPy's arrays in files: one in a .npy (NEP 1, formats 1.0 to 3.0), several by name in a .npz, which
// is a zip archive of such files, as numpy.savez and savez_compressed write it.
namespace trestle::data {

struct NpyArray {
  std::string type;  // "f4": b (bool), i, u or f, and the bytes of a number
  std::vector<std::int64_t> shape = {};
  std::string bytes = {};  // row after row, little-endian

  std::int64_t count() const;  // of numbers
};

// Reads "x.npy", or the array x of "set.npz" as "set.npz:x" (its only one as "set.npz"). Throws
// FileError, and FormatError for bytes that are no such file, are cut short, or hold what cannot be
// read: Fortran's order, big-endian numbers, complex numbers, text, objects.
NpyArray read_npy(const std::string& place);

// A .npy from bytes in memory; `name` stands for the file in messages.
NpyArray parse_npy(std::string_view bytes, std::string_view name);

// The file of a place: "set.npz" of "set.npz:x", and so for .pt and .pth, which torch.save writes.
std::filesystem::path file_of_array(const std::string& place);

}  // namespace trestle::data
