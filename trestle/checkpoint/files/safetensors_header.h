#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// The JSON header of a safetensors file. Torch-free, so that it is cheap to fuzz.
//
// A file is: 8 bytes, little endian, the header's length; the header; the tensors' bytes,
// row-major, without holes (https://github.com/huggingface/safetensors, "Format").
namespace trestle::checkpoint {

// One tensor of the file.
struct TensorEntry {
  std::string name;
  std::string dtype;                // "F32", "I64", ...: a name that dtype_bytes() accepts
  std::vector<std::int64_t> shape;  // no negative sizes
  std::uint64_t begin = 0;          // bytes from the end of the header
  std::uint64_t end = 0;

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// Bytes of one element; 0 for a name other than F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
int dtype_bytes(std::string_view dtype);

// Longer headers are rejected, as by the reference implementation.
inline constexpr std::uint64_t longest_header = 100'000'000;

// Parses the header's JSON. `data_bytes` is the number of bytes after it. Throws FormatError with
// the name of `file` unless every tensor has a known type and a shape that matches its bytes, and
// the tensors together cover the data exactly.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes,
                               const std::string& file);

// The tensors of a file that trestle writes begin at a multiple of these bytes, so that the tensors
// of a mapped file have the alignment that libtorch gives tensors in memory (c10::gAlignment).
inline constexpr std::uint64_t data_alignment = 64;

// The JSON for these tensors, padded with spaces so that the bytes after it begin at a multiple of
// data_alignment in the file. Throws UsageError for names that are not UTF-8.
std::string format_header(const SafetensorsHeader& header);

}  // namespace trestle::checkpoint
