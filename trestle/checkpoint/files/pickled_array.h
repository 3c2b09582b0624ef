#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

// One array of a file that Python's torch.save wrote, for data rather than weights. No torch in here.
namespace trestle::checkpoint {

struct PickledArray {
  std::string dtype;  // "F32", "I64", ...: as in safetensors_header.h
  std::vector<std::int64_t> shape = {};
  std::string bytes = {};  // row after row, little-endian
  bool negated = false;    // its values are minus those of `bytes`
};

// The tensor that was saved alone; or that of a dict which is called `name`, its only one where that
// is empty. Of dicts in a dict, that of tensors is meant, as find_state_dict() says. Throws FileError, FormatError as PickledFile does, and
// FormatError where there is no such tensor, naming those that there are.
PickledArray read_pickled_array(const std::filesystem::path& path, const std::string& name);

}  // namespace trestle::checkpoint
