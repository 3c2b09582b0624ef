#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// The JSON that stands at the front of a safetensors file. No torch in here, so that it is cheap to
// fuzz.
//
// A file is: 8 bytes, little endian, the header's length; the header; the tensors' bytes,
// row-major, without holes (https://github.com/huggingface/safetensors, "Format").
namespace trestle::checkpoint {

// One tensor of the file.
struct TensorEntry {
  std::string name;
  std::string dtype;                // "F32", "I64", ...: one that dtype_bytes() knows
  std::vector<std::int64_t> shape;  // no number is negative
  std::uint64_t begin = 0;          // bytes since the end of the header
  std::uint64_t end = 0;

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// Bytes of one element; 0 for a name that is none of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
int dtype_bytes(std::string_view dtype);

// Headers longer than this are refused, by us as by the reference implementation.
inline constexpr std::uint64_t longest_header = 100'000'000;

// Reads the header's JSON. `data_bytes` is what the file holds after it. Throws FormatError (naming
// `file`) unless every tensor has a known type, a shape whose product matches its bytes, and the
// tensors together cover the data exactly.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes,
                               const std::string& file);

// The JSON for these tensors, padded with spaces to a multiple of 8 bytes. Throws UsageError for
// names that are not UTF-8.
std::string format_header(const SafetensorsHeader& header);

}  // namespace trestle::checkpoint
