#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trestle/checkpoint/safetensors.h"
#include "trestle/device/named_tensors.h"

namespace trestle::nn {
class Layers;
}

// Weights to and from Python: safetensors files, and those of torch.save(model.state_dict(), file).
//
//   checkpoint::load_weights(net, "resnet18.pt");             // net: trestle::nn::Layers
//   checkpoint::write_weights("mine.pt", net.named_parameters());
//   for (const auto& tensor : checkpoint::list_weights("mine.pt"))
//     std::cout << tensor.name << " " << at::IntArrayRef(tensor.shape) << "\n";
//
// Which of the two a file is, its first bytes say when it is read, and its ending when it is
// written. Where a file is read, a checkpoint's folder may be given too (checkpoint_folder.h), in
// however many parts it was saved: its weights are meant. Nothing in a file is run or trusted: of a
// pickle only tensors and plain containers are read, any other name in it is refused, and no size is
// believed before the file's own has been looked at. The files that torch.save wrote before version
// 1.6, and TorchScript programs, are refused with what to do in Python.
namespace trestle::checkpoint {

struct StoredTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
};

// What a file holds, without reading the tensors. Of a training checkpoint it is the one entry that
// is a dict of tensors, as "state_dict" or "model". Throws FileError where the system refuses,
// FormatError where the file is not right.
std::vector<StoredTensor> list_weights(const std::filesystem::path& path);

// All tensors, on the CPU, in the order of the file. Those of torch.save are views of one storage
// where they were in Python. Throws as list_weights() does.
TensorFile read_weights(const std::filesystem::path& path);

struct LoadOptions {
  // Throw unless every tensor of the model has one in the file and the other way round. When false,
  // what fits is loaded, the rest of the model stays as it is, and the report says what that is.
  bool strict = true;
  // What a name in the file is called in the model. Left out: "module.", "_orig_mod.", "model."
  // and torchgpipe's "partitions.<n>." in front of names are taken off, and the names of the reference
  // programs, of torchvision's ResNet and of the well-known U-Net are translated, where more names
  // fit then (names_of() in weight_names.h).
  std::function<std::string(const std::string&)> rename = {};
};

struct LoadReport {
  std::string names = {};  // which names the file has: "its own", "torchvision's", ...
  std::size_t loaded = 0;
  std::size_t converted = 0;  // of them, those of another floating type than the model's
  // With shapes: "'fc.weight' [10, 512]". All empty when everything fitted.
  std::vector<std::string> missing = {};     // in the model, not in the file
  std::vector<std::string> unexpected = {};  // in the file, not in the model
  std::vector<std::string> mismatched = {};  // both shapes

  bool whole() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

// Copies the file's tensors into those of `into` in place, by name, whatever their devices and
// strides. From a safetensors file the bytes go straight into parameters on the CPU. Floating types
// are converted, as Python's load_state_dict does; a missing "num_batches_tracked" is no fault, as
// there. Throws FormatError, with all names and shapes that do not fit, before anything is copied;
// if nothing fits, without `strict` too. A file that cannot be read to its end leaves some tensors
// copied.
LoadReport load_weights(const NamedTensors& into, const std::filesystem::path& path,
                        const LoadOptions& options = {});
// The same for a model's parameters and buffers.
LoadReport load_weights(const nn::Layers& model, const std::filesystem::path& path,
                        const LoadOptions& options = {});

// "12 of 14 tensors, under torchvision's names", and what was left, in lines.
std::string describe(const LoadReport& report);

// The tensors under the names that another program's model has for them: "torchvision" for its
// ResNet, "reference" for the reference programs' nets, "pytorch_unet" for the well-known U-Net
// (name_table_names() lists them). Throws UsageError for another word, and for tensors of a model
// that has no such names.
NamedTensors rename_weights(NamedTensors tensors, const std::string& whose);
std::vector<std::string> name_table_names();

// Throws UsageError for a path that write_weights() would refuse for its ending.
void check_weights_ending(const std::filesystem::path& path);

// Writes tensors, whole or not at all: as torch.save writes a state_dict where the path ends in
// .pt or .pth, as safetensors where it ends in .safetensors (only that keeps `metadata`). Throws
// UsageError for another ending and where write_tensors() does.
void write_weights(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

}  // namespace trestle::checkpoint
