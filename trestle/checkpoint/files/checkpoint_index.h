#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/files/box.h"

// What a checkpoint folder holds: its index.json. No torch in here, so that it is cheap to fuzz.
// Internal to trestle/checkpoint.
//
//     {"format": "trestle checkpoint", "version": 2,
//      "state": {...},
//      "files": {"weights.rank0.safetensors": {"bytes": 1152}, ...},
//      "tensors": {"weights": [
//        {"name": "in.weight", "dtype": "F32", "shape": [8, 3], "boxes": [
//          {"file": "weights.rank0.safetensors", "offset": [0, 0], "sizes": [4, 3], "hash": "..."},
//          {"file": "weights.rank1.safetensors", "offset": [4, 0], "sizes": [4, 3], "hash": "..."}]},
//        ...], "optimizer": [...]}}
//
// Tensors are in groups, of which each has names of its own and files of its own. A box lies in its
// file as a tensor of that size under the tensor's name, or under "key" where it has one: a file that has
// several boxes of a tensor. `hash` is content_hash() of its bytes.
namespace trestle::checkpoint {

inline constexpr int checkpoint_version =
    2;  // 1: a state.json beside safetensors, without an index
inline constexpr const char* index_name = "index.json";
// Longer ones are refused.
inline constexpr std::uint64_t longest_index = 256 << 20;

struct StoredBox {
  std::string file;
  Box box;
  std::string hash = {};  // empty: not known
  std::string key = {};   // its name in the file; empty: the tensor's

  friend bool operator==(const StoredBox&, const StoredBox&) = default;
};

struct IndexedTensor {
  std::string name;
  std::string dtype;  // one that dtype_bytes() knows
  Sizes shape;
  std::vector<StoredBox> boxes;

  std::vector<Box> plain_boxes() const;
  // A box's name in its file.
  const std::string& key_of(const StoredBox& box) const { return box.key.empty() ? name : box.key; }
  friend bool operator==(const IndexedTensor&, const IndexedTensor&) = default;
};

struct CheckpointIndex {
  std::string state = "{}";                    // a JSON object, whatever is in it
  std::map<std::string, std::uint64_t> files;  // bytes of each
  std::map<std::string, std::vector<IndexedTensor>> groups;

  friend bool operator==(const CheckpointIndex&, const CheckpointIndex&) = default;
};

// Where a file of tensors may lie: a plain name, no path, that ends in .safetensors.
bool is_part_name(std::string_view name);
// "weights.rank2.safetensors"; of a rank that is alone "weights.safetensors".
std::string part_name(const std::string& group, int rank, int ranks);

// Whether the boxes must hold every element once; those of one rank's part need not.
enum class Cover : std::uint8_t { Whole, Part };

// Throws FormatError, naming `file`, for anything that is not exactly right: another format or
// version, names that stand twice, files that are paths, boxes that reach beyond their tensor, two
// that overlap, elements that none has.
CheckpointIndex parse_index(std::string_view json, const std::string& file,
                            Cover cover = Cover::Whole);

// One line for each tensor. Throws UsageError for names that are not UTF-8.
std::string format_index(const CheckpointIndex& index);

// One index of what each rank wrote, in the order of ranks; the state is left out. Throws UsageError
// that names tensor, ranks and box where two ranks saved the same, none did, or they do not agree on
// the tensor's dtype or shape.
CheckpointIndex merge_parts(std::vector<CheckpointIndex> parts);

}  // namespace trestle::checkpoint
