#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

// IDX, the file format of MNIST (yann.lecun.com/exdb/mnist): a magic number 00 00 <type>
// <dimensions>, one big-endian 32-bit size for each dimension, then the values. This reads and
// writes the two kinds that MNIST uses, both of unsigned bytes: pictures (3 dimensions) and labels
// (1 dimension). A gzip-compressed file is unpacked.
//
// FormatError with the file and the numbers reports anything else: another type or number of
// dimensions, a size of zero, fewer or more bytes than the sizes require, damaged compression.
// Memory is allocated only for bytes that exist, whatever the sizes are.
namespace trestle::data {

struct IdxImages {
  std::int64_t count = 0;
  int rows = 0;
  int columns = 0;
  std::vector<std::uint8_t> pixels = {};  // count * rows * columns, 0 is background
};

using IdxLabels = std::vector<std::uint8_t>;

IdxImages read_idx_images(const std::filesystem::path& path);
IdxLabels read_idx_labels(const std::filesystem::path& path);

// The same for bytes in memory; `name` is the file's name in messages.
IdxImages parse_idx_images(std::string_view bytes, std::string_view name);
IdxLabels parse_idx_labels(std::string_view bytes, std::string_view name);

// Throw UsageError if `pixels` does not fit the sizes, FileError if the system rejects the write.
void write_idx_images(const std::filesystem::path& path, const IdxImages& images);
void write_idx_labels(const std::filesystem::path& path, const IdxLabels& labels);

}  // namespace trestle::data
