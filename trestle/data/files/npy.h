#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// NumPy's arrays in files: one in a .npy (NEP 1, formats 1.0 to 3.0), several by name in a .npz, a
// zip archive of such files as written by numpy.savez and savez_compressed.
namespace trestle::data {

struct NpyArray {
  std::string type;  // "f4": b (bool), i, u or f, and the bytes of a number
  std::vector<std::int64_t> shape = {};
  std::string bytes = {};  // row after row, little-endian

  std::int64_t count() const;  // number of elements
};

// Reads "x.npy", or the array x of "set.npz" as "set.npz:x" (its only one as "set.npz"). Throws
// FileError, and FormatError for bytes that are not such a file or are cut short, and for
// unsupported contents: Fortran order, big-endian numbers, complex numbers, text, objects.
NpyArray read_npy(const std::string& place);

// Parses a .npy from bytes in memory; `name` is the file's name in messages.
NpyArray parse_npy(std::string_view bytes, std::string_view name);

// Reads type and shape of a .npy; the array has no bytes. Throws as read_npy().
NpyArray read_npy_header(const std::filesystem::path& path);

// Writes a .npy of format 1.0. Throws UsageError if the bytes do not fit the shape.
void write_npy(const std::filesystem::path& path, const NpyArray& array);

// The file of a place: "set.npz" of "set.npz:x", and the same for .pt and .pth of torch.save.
std::filesystem::path file_of_array(const std::string& place);

}  // namespace trestle::data
