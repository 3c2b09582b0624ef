#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

// IDX, the file format of MNIST (yann.lecun.com/exdb/mnist): a magic number 00 00 <type>
// <dimensions>, one big-endian 32-bit size for each dimension, then the values. Read and
// written here are the two kinds MNIST uses, both of unsigned bytes: pictures (3
// dimensions) and labels (1 dimension). A gzip-compressed file is read as it is.
//
// Anything else gives FormatError with the file and the numbers: another type or number of
// dimensions, a size of zero, fewer or more bytes than the sizes say, damaged compression. What the
// sizes ask for is not allocated before it is there.
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

// The same from bytes in memory; `name` stands for the file in messages.
IdxImages parse_idx_images(std::string_view bytes, std::string_view name);
IdxLabels parse_idx_labels(std::string_view bytes, std::string_view name);

// Throw UsageError when `pixels` does not fit the sizes, FileError when the system refuses.
void write_idx_images(const std::filesystem::path& path, const IdxImages& images);
void write_idx_labels(const std::filesystem::path& path, const IdxLabels& labels);

}  // namespace trestle::data
