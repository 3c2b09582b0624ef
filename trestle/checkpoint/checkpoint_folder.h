#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"

// A checkpoint that any number of ranks write and any number read: a folder of whole tensors, cut
// into boxes that lie in the files of the ranks that wrote them.
//
//     last/index.json                  each tensor's name, dtype, shape and boxes; the state
//     last/weights.rank0.safetensors   what rank 0 had of the group "weights", under unsplit names
//     last/weights.rank1.safetensors   ...; one process alone writes weights.safetensors
//
// A rank writes what it has, and reads what it wants, whoever wrote that:
//
//   checkpoint::write_checkpoint("last", {{"weights", {{"w", torch::ones({8, 3})}}}}, "{}");
//   checkpoint::CheckpointFolder saved("last");
//   at::Tensor rows = torch::empty({2, 3});
//   saved.read("weights", {{"w", rows, {4, 0}}});   // rows 4 and 5 of w
namespace trestle::checkpoint {

// A tensor, or a box of one.
struct TensorPart {
  std::string name;  // of the whole tensor in the unsplit model
  at::Tensor tensor;
  // Where it begins in the whole tensor, and the shape of that. Both empty: it is the whole.
  std::vector<std::int64_t> offset = {};
  std::vector<std::int64_t> shape = {};
};

// By group, of which each has names of its own. A rank may have several boxes of one tensor. A group's name is part of its files' names.
using TensorGroups = std::map<std::string, std::vector<TensorPart>>;

// Writes the folder anew, as one, and flushes it: whenever a machine stops, the folder is one whole
// checkpoint, the older or the newer. Called by all ranks with one folder that all of them see, each
// with what it has; `state` is JSON, an object, and that of rank 0 is kept. Each element of a tensor
// is written by exactly one rank: of ranks that have the same, one. A tensor that a model holds under
// two names is written under both. `agreed` are words that must be the same on all ranks, as "step
// 12": they may not be mixed.
//
// Throws, on every rank, what one met, with its number: FileError where the system refuses (disk
// full), UsageError for elements that no rank saved or two did, for shapes or dtypes that ranks do
// not agree on, for a tensor that cannot be saved, for words that differ, and for a folder that is
// something else than a checkpoint. What stood there before stays then.
void write_checkpoint(const std::filesystem::path& folder, const TensorGroups& groups,
                      const std::string& state, const SaveRanks& ranks = {},
                      const std::string& agreed = {});

// One that is there, of this version or the one before. Nothing in it is trusted. A copy stands for
// the same.
class CheckpointFolder {
 public:
  // Reads the index, and looks whether its files are there. Throws FileError where there is no such
  // folder; FormatError where the index is not right, and, with its name, for a file that is
  // missing or of another size.
  explicit CheckpointFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const;
  const std::string& state() const;  // JSON
  // What a group has, in the order in which it was written; none where there is no such group.
  const std::vector<StoredTensor>& tensors(const std::string& group) const;

  // A tensor of this shape, any device and any strides, that gets the whole tensor of that name, or
  // the box of it that begins at `offset`.
  struct Wanted {
    std::string name;
    at::Tensor into;
    std::vector<std::int64_t> offset = {};
  };
  // Only what is wanted is read, from the files that have it. Throws FormatError, before anything is
  // read, with all names that are missing or of another shape or dtype; and for a file that is not
  // the one which was saved: some tensors may be read then. Boxes that are read whole are compared
  // with what was written, bit by bit by a hash.
  void read(const std::string& group, const std::vector<Wanted>& wanted) const;
  // New ones on the CPU, by name; all of the group.
  NamedTensors read(const std::string& group, const std::vector<std::string>& names) const;
  NamedTensors read(const std::string& group) const;

 private:
  struct Content;
  std::shared_ptr<const Content> content_;
};

// The group "weights" of a checkpoint as one safetensors file, tensor by tensor: no more than one is
// in memory. Throws as CheckpointFolder::read() and write_tensors().
void write_as_one_file(const CheckpointFolder& folder, const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata = {});

// write_tensors() over ranks: each gives what it has, the file holds all of it. Called by all ranks with
// one path that all of them see; the parts lie beside it meanwhile, in "<path>.parts". Throws on all
// ranks what one met, as write_checkpoint(); what stood at `path` before stays then.
void write_tensors_over_ranks(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const SaveRanks& ranks);

}  // namespace trestle::checkpoint
