#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/files/box.h"
#include "trestle/checkpoint/files/pickle/zip_records.h"

// The contents of a checkpoint folder: its index.json. The index of another program's folder is
// made from its files (foreign_folder.h). Torch-free, so that it is cheap to fuzz.
// Internal to trestle/checkpoint.
//
//     {"format": "trestle checkpoint", "version": 2,
//      "state": {...},
//      "files": {"weights.rank0.safetensors": {"bytes": 1152}, ...},
//      "tensors": {"weights": [
//       {"name": "in.weight", "dtype": "F32", "shape": [8, 3], "boxes": [
//        {"file": "weights.rank0.safetensors", "offset": [0, 0], "sizes": [4, 3], "hash": "..."},
//        {"file": "weights.rank1.safetensors", "offset": [4, 0], "sizes": [4, 3], "hash": "..."}]},
//        ...], "optimizer": [...]}}
//
// Tensors are in groups, each with its own names and files. A box is stored in its file as a tensor
// of that size, with the tensor's name, or with "key" if the file has several boxes of the tensor.
// `hash` is content_hash() of its bytes.
namespace trestle::checkpoint {

inline constexpr int checkpoint_version =
    2;  // 1: a state.json beside safetensors, without an index
inline constexpr const char* index_name = "index.json";
// Longer indexes are rejected.
inline constexpr std::uint64_t longest_index = 256 << 20;

// The place of a box in another program's file: a range of one of CheckpointIndex::records.
struct RecordPlace {
  std::size_t record = 0;
  std::uint64_t begin = 0;  // bytes from the begin of the record

  friend bool operator==(const RecordPlace&, const RecordPlace&) = default;
};

struct StoredBox {
  std::string file;
  Box box;
  std::string hash = {};                  // empty if unknown
  std::string key = {};                   // its name in the file; empty for the tensor's name
  std::optional<RecordPlace> place = {};  // without it the file is a safetensors file

  friend bool operator==(const StoredBox&, const StoredBox&) = default;
};

struct IndexedTensor {
  std::string name;
  std::string dtype;  // a name that dtype_bytes() accepts
  Sizes shape;
  std::vector<StoredBox> boxes;

  std::vector<Box> plain_boxes() const;
  // A box's name in its file.
  const std::string& key_of(const StoredBox& box) const { return box.key.empty() ? name : box.key; }
  friend bool operator==(const IndexedTensor&, const IndexedTensor&) = default;
};

// A checked range of another program's file; or, without a file, bytes that were computed.
struct StoredRecord {
  std::string file;
  ZipRecord bytes = {};
  std::string content = {};

  friend bool operator==(const StoredRecord&, const StoredRecord&) = default;
};

// The programs whose folders are read.
enum class FolderKind : std::uint8_t { Trestle, HuggingFace, Dcp, Deepspeed };

struct CheckpointIndex {
  std::string state = "{}";                    // any JSON object
  std::map<std::string, std::uint64_t> files;  // bytes of each
  std::map<std::string, std::vector<IndexedTensor>> groups;
  FolderKind kind = FolderKind::Trestle;
  std::vector<StoredRecord> records = {};

  friend bool operator==(const CheckpointIndex&, const CheckpointIndex&) = default;
};

// Whether this is a valid name of a file of tensors: no path, ends in .safetensors.
bool is_shard_file_name(std::string_view name);
// "weights.rank2.safetensors"; "weights.safetensors" for a single rank.
std::string shard_file_name(const std::string& group, int rank, int ranks);

// Whether the boxes must contain every element once; the boxes of one rank need not.
enum class Cover : std::uint8_t { Whole, OneRank };

// Throws FormatError with the name of `file` for anything invalid: another format or version,
// duplicate names, files that are paths, boxes that exceed their tensor or overlap, elements that
// no box contains.
CheckpointIndex parse_index(std::string_view json, const std::string& file,
                            Cover cover = Cover::Whole);

// One line for each tensor. Throws UsageError for names that are not UTF-8.
std::string format_index(const CheckpointIndex& index);

// Merges the indexes of all ranks, in the order of ranks, without the state. Throws UsageError with
// tensor, ranks and box if two ranks saved the same elements, if none did, or if they disagree on
// the tensor's dtype or shape.
CheckpointIndex merge_indexes(std::vector<CheckpointIndex> indexes);

}  // namespace trestle::checkpoint
