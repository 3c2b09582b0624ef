#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trestle/device/named_tensors.h"

// Tensors in a file that Python can read: `safetensors.torch.load_file(path)`.
//
//   checkpoint::write_tensors("best.safetensors", model.named_parameters(), {{"epoch", "7"}});
//   auto file = checkpoint::read_tensors("best.safetensors");
//   checkpoint::copy_into(file.tensors, model.named_parameters(), "best.safetensors");
namespace trestle::checkpoint {

struct TensorFile {
  NamedTensors tensors;                         // on the CPU, in the order of the file
  std::map<std::string, std::string> metadata;  // free text
};

// Writes the tensors completely or not at all (write_file). Devices and strides are not kept: a
// file holds contiguous tensors. Throws UsageError for two tensors with one name, for an undefined
// tensor, and for a type that the format lacks (complex, quantised, sparse); FileError if the
// system rejects the write.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

// Reads a file without trusting its contents: throws FormatError for anything invalid, FileError if
// it cannot be read.
TensorFile read_tensors(const std::filesystem::path& path);

// Copies `from` into the tensors of `into` in place, by name, on any devices. Both must have the
// same names. Throws FormatError that lists missing and surplus names and those with another shape
// or type; nothing is copied then.
void copy_into(const NamedTensors& from, const NamedTensors& into, const std::string& file);

}  // namespace trestle::checkpoint
