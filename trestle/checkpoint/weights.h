#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/checkpoint/safetensors.h"
#include "trestle/device/named_tensors.h"

namespace trestle::nn {
class Layers;
}

// Weights to and from Python: safetensors files, and files of torch.save(model.state_dict(), file).
// Weights from llama.cpp: GGUF files, whose quantised tensors are read as float.
//
//   checkpoint::load_weights(net, "resnet18.pt");             // net: trestle::nn::Layers
//   checkpoint::write_weights("mine.pt", net.named_parameters());
//   for (const auto& tensor : checkpoint::list_weights("mine.pt"))
//     std::cout << tensor.name << " " << at::IntArrayRef(tensor.shape) << "\n";
//
// The kind of file is recognized by its first bytes when reading, and by its ending when writing. A
// checkpoint's folder (checkpoint_folder.h), written by any number of ranks, may be given instead
// of a file to read; its weights are used. So may a folder of DeepSpeed's, of
// torch.distributed.checkpoint, or of Hugging Face (model.safetensors.index.json,
// model.safetensors or pytorch_model.bin). No code in a file is executed and nothing is trusted:
// only tensors and plain containers are read from a pickle, any other name in it is an error, and
// no size is used before it is compared with the file's. Files of torch.save before version 1.6 and
// TorchScript programs are errors with a hint on converting them in Python.
namespace trestle::checkpoint {

struct StoredTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
};

// Lists the tensors of a file without reading them. For a training checkpoint of Python it lists
// the only entry that is a dict of tensors, such as "state_dict" or "model". Throws FileError if
// the system rejects the read, FormatError if the file is invalid.
std::vector<StoredTensor> list_weights(const std::filesystem::path& path);

// Reads all tensors to the CPU, in the order of the file. Tensors of torch.save that shared one
// storage in Python do so here. Throws like list_weights().
TensorFile read_weights(const std::filesystem::path& path);

// The memory of tensors that are loaded.
enum class LoadMemory {
  Own,  // their own, which the file's bytes are copied to
  // That of the mapped file, where a safetensors file has all bytes of a CPU tensor's storage in
  // the same type and order, beginning at a multiple of 64 bytes. Files that trestle writes begin
  // their tensors so, and parts of one storage that lie next to each other in the file are one
  // range. Nothing is copied, and processes that map one file share its pages. Writing to such a
  // tensor copies the page and does not change the file. The file must not be changed in place:
  // a shorter one ends the process by SIGBUS, and other bytes are other weights. A file that
  // replaces it, as every writer of trestle makes it, has no effect. For use without training.
  Mapped,
};

// A tensor that is a box of one in a file, such as a slice of tensor parallelism.
struct BoxOfFile {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> whole;  // the shape in the file
};

struct LoadOptions {
  // Throw unless the model and the file have the same tensors. If false, the matching tensors are
  // loaded, the rest of the model stays unchanged, and the report lists it.
  bool strict = true;
  // Maps a name in the file to the model's name, or to "" for a tensor to skip. Without it, the
  // prefixes "module.", "_orig_mod.", "model." and torchgpipe's "partitions.<n>." are removed. The
  // names of the reference programs, of torchvision's ResNet and of the well-known U-Net are
  // translated if more names match then (names_of() in weight_names.h).
  std::function<std::string(const std::string&)> rename = {};
  LoadMemory memory = LoadMemory::Own;
  // For tensors of `into` that are boxes, by their number there; several may be of one tensor.
  std::map<std::size_t, BoxOfFile> boxes = {};
  // The hint of the error for weights some of which match.
  std::string mismatch_hint =
      "To load the matching tensors and leave the rest unchanged: strict = false (in a recipe, "
      "weights_strict = false).";
};

struct LoadReport {
  std::string names = {};  // whose names the file has: "its own", "torchvision's", ...
  std::size_t loaded = 0;
  std::size_t converted =
      0;  // number of loaded tensors whose floating type differs from the model's
  // With shapes: "'fc.weight' [10, 512]". All are empty if everything matched.
  std::vector<std::string> missing = {};     // in the model, not in the file
  std::vector<std::string> unexpected = {};  // in the file, not in the model
  std::vector<std::string> mismatched = {};  // both shapes

  bool whole() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

// Copies the file's tensors into those of `into` in place, by name, for any devices and strides.
// Floating types are converted, as in Python's load_state_dict; a missing "num_batches_tracked" is
// allowed, as there. Throws FormatError with all names and shapes that do not match; without
// `strict` too if nothing matches; after such an error, nothing has been changed.
//
// If a file has checksums (torch.save, a checkpoint of trestle or DeepSpeed), all tensors are read
// to the CPU and checked before the first is copied: nothing has been changed after any error. A
// safetensors or GGUF file of more than 64 MiB is read directly into the model's memory, or one
// tensor after the other where type, device or strides differ: then a disk that fails in between
// leaves some tensors loaded.
LoadReport load_weights(const NamedTensors& into, const std::filesystem::path& path,
                        const LoadOptions& options = {});
// The same for a model's parameters and buffers.
LoadReport load_weights(const nn::Layers& model, const std::filesystem::path& path,
                        const LoadOptions& options = {});

// "12 of 14 tensors, under torchvision's names", and the remaining ones in lines.
std::string describe(const LoadReport& report);

// Renames the tensors for another program's model: "torchvision" for its ResNet, "reference" for
// the reference programs' nets, "pytorch_unet" for the well-known U-Net (name_table_names() lists
// them). Throws UsageError for another word, and for tensors of a model without such names.
NamedTensors rename_weights(NamedTensors tensors, const std::string& whose);
std::vector<std::string> name_table_names();

// Throws UsageError for a path with an ending that write_weights() does not support.
void check_weights_ending(const std::filesystem::path& path);

// Writes tensors completely or not at all: like torch.save of a state_dict for a path that ends in
// .pt or .pth, as safetensors for .safetensors (only that keeps `metadata`). Throws UsageError for
// another ending, and like write_tensors().
void write_weights(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

// Writes tensors as a folder that Hugging Face's from_pretrained() reads: safetensors files of at
// most `largest_file` bytes of tensors each (a larger tensor has its own file) and
// model.safetensors.index.json, or model.safetensors alone if one file is enough. The folder
// appears as a whole. Throws UsageError for a folder that exists and is not empty, and like
// write_tensors().
void write_weights_folder(const std::filesystem::path& folder, const NamedTensors& tensors,
                          Bytes largest_file,
                          const std::map<std::string, std::string>& metadata = {});

// The same into a folder that exists, file by file, for a caller that puts more beside the weights.
// Without `largest_file` the file is model.safetensors. Removes the folder's older weights in
// safetensors under such names at the end: a reader would take an old index for these weights.
// Throws like write_tensors().
void write_weights_files(const std::filesystem::path& folder, const NamedTensors& tensors,
                         std::optional<Bytes> largest_file = {},
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace trestle::checkpoint
