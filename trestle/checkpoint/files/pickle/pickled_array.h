#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

// Reads one array from a file of Python's torch.save, for data rather than weights. Torch-free.
namespace trestle::checkpoint {

struct PickledArray {
  std::string dtype;  // "F32", "I64", ...: as in safetensors_header.h
  std::vector<std::int64_t> shape = {};
  std::string bytes = {};  // row after row, little-endian
  bool negated = false;    // its values are minus those of `bytes`
};

// Reads a tensor that was saved alone, or the tensor called `name` of a dict; an empty name means
// the only one. In nested dicts it searches the dict of tensors, as in find_state_dict(). Throws
// FileError, FormatError like PickledFile, and FormatError that lists the existing tensors if there
// is no such tensor.
PickledArray read_pickled_array(const std::filesystem::path& path, const std::string& name);

}  // namespace trestle::checkpoint
