#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/checkpoint/files/save_ranks.h"
#include "trestle/checkpoint/padded_rows.h"
#include "trestle/checkpoint/rank_slices.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"

// A checkpoint that any number of ranks write and any number read: a folder of whole tensors, each
// cut into boxes that are stored in the files of the ranks that wrote them.
//
//     last/index.json                  each tensor's name, dtype, shape and boxes; the state
//     last/weights.rank0.safetensors   rank 0's boxes of the group "weights", unsplit names
//     last/weights.rank1.safetensors   ...; a single process writes weights.safetensors
//
// A rank writes the boxes that it owns, and reads the boxes that it needs from any rank's files:
//
//   checkpoint::write_checkpoint("last", {{"weights", {{"w", torch::ones({8, 3})}}}}, "{}");
//   checkpoint::CheckpointFolder saved("last");
//   at::Tensor rows = torch::empty({2, 3});
//   saved.read("weights", {{"w", rows, {4, 0}}});   // rows 4 and 5 of w
namespace trestle::checkpoint {

// A tensor, or a box of one.
struct TensorShard {
  std::string name;  // of the whole tensor in the unsplit model
  at::Tensor tensor;
  // The box's offset in the whole tensor, and the whole shape. Both are empty for a whole tensor.
  std::vector<std::int64_t> offset = {};
  std::vector<std::int64_t> shape = {};
};

// Tensors by group; names are unique within a group. A rank may have several boxes of one tensor. A
// group's name is part of its files' names.
using TensorGroups = std::map<std::string, std::vector<TensorShard>>;

// Replaces the folder atomically and flushes it: after a crash, the folder is one complete
// checkpoint, the old or the new one. All ranks call it with one folder on a shared file system,
// each with its own tensors. `state` is a JSON object; rank 0's is kept. Exactly one rank must
// write each element of a tensor, so of ranks with the same element only one writes it. A tensor
// that a model has under two names is written under both. `agreed`, such as "step 12", must be the
// same on all ranks.
//
// If one rank fails, all ranks throw its error with its number: FileError if the system rejects a
// write (disk full); UsageError for elements that no rank or two ranks saved, for shapes or dtypes
// that differ between ranks, for a tensor that cannot be saved, for different values of `agreed`,
// and for a folder that is not a checkpoint. The old folder then remains.
void write_checkpoint(const std::filesystem::path& folder, const TensorGroups& groups,
                      const std::string& state, const SaveRanks& ranks = {},
                      const std::string& agreed = {});

// Tensors that were read and checked, and their destinations.
class StagedTensors {
 public:
  // Copies them into their destinations. Copying cannot fail for a reason of the files.
  void write() const;

 private:
  friend class CheckpointFolder;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // from, to
};

// An existing checkpoint of the current version or the one before, or a folder that another program
// wrote: DeepSpeed (a tag's folder, or the folder of tags with `latest`),
// torch.distributed.checkpoint, Hugging Face (model.safetensors.index.json). Its contents are not
// trusted. Copies share one object.
//
// In another program's folder floating types are converted to those of the tensors that are read
// into. For DeepSpeed's, state() has the number of steps and the numbers of the client state.
class CheckpointFolder {
 public:
  // Reads the index and checks that its files exist. Throws FileError if there is no such folder;
  // FormatError for an invalid index and, with the file's name, for a file that is missing or has
  // another size.
  //
  // The tensors of `padding` that are saved without their padding are read as if they had been
  // saved with it: shapes are those of the model, and the padded rows are zeros. The tensors of
  // `slices` are read as if the rank's slices had been saved: shapes and boxes are theirs.
  explicit CheckpointFolder(const std::filesystem::path& folder, const PaddedRows& padding = {},
                            const nn::ParameterSlices& slices = {});

  const std::filesystem::path& path() const;
  const std::string& state() const;  // JSON
  bool is_foreign() const;           // whether another program wrote it
  // The tensors of a group, in the order in which they were written; none for an unknown group.
  const std::vector<StoredTensor>& tensors(const std::string& group) const;

  // A tensor on any device with any strides, to be filled with the whole tensor of that name, or
  // with the box of it that begins at `offset`.
  struct Wanted {
    std::string name;
    at::Tensor into;
    std::vector<std::int64_t> offset = {};
  };
  // Reads only the wanted elements, to the CPU, checks them, and copies them then: after an error
  // nothing has been changed. Throws FormatError with all names that are missing or have another
  // shape or dtype, and for a file that differs from the saved one. Boxes that are read as a whole
  // are compared with the saved ones by a hash of all bits, storages of other programs' files by
  // their checksum.
  void read(const std::string& group, const std::vector<Wanted>& wanted) const;
  // The first half of it, for a caller that reads several groups before it changes anything.
  StagedTensors stage(const std::string& group, const std::vector<Wanted>& wanted) const;
  // Reads into new CPU tensors: these names, or the whole group.
  NamedTensors read(const std::string& group, const std::vector<std::string>& names) const;
  NamedTensors read(const std::string& group) const;

 private:
  struct Content;
  // Reads directly into tensors of the stored types, which nothing else uses.
  void fill(const std::string& group, const std::vector<Wanted>& wanted) const;

  std::shared_ptr<const Content> content_;
};

// Writes the group "weights" of a checkpoint as one safetensors file, with only one tensor in
// memory at a time. Throws like CheckpointFolder::read() and write_tensors().
void write_as_one_file(const CheckpointFolder& folder, const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata = {});

// write_tensors() over ranks: each rank passes its tensors, and the file holds all of them. All
// ranks call it with one path on a shared file system; meanwhile the shards are in "<path>.parts".
// If one rank fails, all ranks throw, as in write_checkpoint(), and the old file remains.
void write_tensors_over_ranks(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const SaveRanks& ranks);
// The same for ranks that have boxes of tensors.
void write_boxes_over_ranks(const std::filesystem::path& path,
                            const std::vector<TensorShard>& boxes,
                            const std::map<std::string, std::string>& metadata,
                            const SaveRanks& ranks);

}  // namespace trestle::checkpoint
