#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trestle/device/named_tensors.h"

// Tensors in a file that Python reads too: `safetensors.torch.load_file(path)`.
//
//   checkpoint::write_tensors("best.safetensors", model.named_parameters(), {{"epoch", "7"}});
//   auto file = checkpoint::read_tensors("best.safetensors");
//   checkpoint::copy_into(file.tensors, model.named_parameters(), "best.safetensors");
namespace trestle::checkpoint {

struct TensorFile {
  NamedTensors tensors;                         // on the CPU, in the order of the file
  std::map<std::string, std::string> metadata;  // free words
};

// Writes the tensors, whole or not at all (write_file). Devices and strides are not kept: a file
// holds plain rows. Throws UsageError for two tensors of one name, an undefined tensor, or a type
// that the format does not have (complex, quantised, sparse); FileError where the system refuses.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

// Reads a file, trusting nothing in it: FormatError for anything that is not exactly right,
// FileError where it cannot be read.
TensorFile read_tensors(const std::filesystem::path& path);

// Copies `from` into the tensors of `into` in place, by name, whatever their devices. The names
// must be the same on both sides; throws FormatError that lists what is missing, what is too much,
// and what has another shape or type. Nothing is copied then.
void copy_into(const NamedTensors& from, const NamedTensors& into, const std::string& file);

}  // namespace trestle::checkpoint
