#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trestle/checkpoint/files/gguf/gguf_type.h"

// The header of a GGUF file, the format of llama.cpp: metadata and the list of tensors
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Torch-free.
//
//   GgufHeader header = read_gguf_header("smollm/model.gguf");
//   const auto* name = header.find<std::string>("general.architecture");  // "llama"
namespace trestle::checkpoint {

class FileBytes;

// Integers of all widths are int64, floats are double.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // in torch's order: the last dimension is contiguous
  GgufType type = GgufType::F32;
  std::uint64_t begin = 0;  // of its bytes in the file
  std::uint64_t bytes = 0;  // whole blocks of the type
};

struct GgufHeader {
  std::string file;  // its name, for messages
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of each tensor's first byte
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the order of the header

  // The value of the key; null if it is missing or of another type.
  template <class T>
  const T* find(std::string_view key) const {
    const auto found = metadata.find(key);
    return found == metadata.end() ? nullptr : std::get_if<T>(&found->second);
  }
};

// Longer headers are rejected. A vocabulary of 256,000 tokens takes about 10 MB.
inline constexpr std::uint64_t longest_gguf_header = 256 << 20;

// Reads the header of a little-endian file of version 2 or 3. No size is used before it is compared
// with the file's. Throws FileError if the file cannot be read. Throws FormatError for anything but
// such a header, for keys and names that occur twice, a type that dequantise() does not have, rows
// that are not whole blocks, and tensors that overlap or are not within the file.
GgufHeader read_gguf_header(const std::filesystem::path& path);
// The same for an open file, or for bytes in memory.
GgufHeader read_gguf_header(const FileBytes& file);

}  // namespace trestle::checkpoint
