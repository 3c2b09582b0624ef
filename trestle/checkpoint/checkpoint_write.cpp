#include <algorithm>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/content_hash.h"
#include "trestle/checkpoint/files/save_over_ranks.h"
#include "trestle/checkpoint/safetensors_file.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

Box box_of(const TensorShard& shard) {
  const Sizes sizes = shard.tensor.sizes().vec();
  if (shard.offset.empty() && shard.shape.empty()) return whole_box(sizes);
  const Box box{shard.offset, sizes};
  if (!lies_in(box, shard.shape))
    throw UsageError(text("the box of '", shard.name, "' at [", join(shard.offset, ", "),
                          "] of size [", join(sizes, ", "), "] is not within its shape, [",
                          join(shard.shape, ", "), "]"));
  return box;
}

// A key that no other tensor in the file has: "w[1]" for the second box of w.
std::string unused_key(const std::string& name, std::size_t box, std::set<std::string>& taken) {
  std::string key = text(name, "[", box, "]");
  while (!taken.insert(key).second) key += "_";
  return key;
}

// This rank's tensors of a group with their boxes; `tensors` has them by their keys in the file.
class GroupIndex {
 public:
  explicit GroupIndex(const std::vector<TensorShard>& shards) {
    for (const TensorShard& shard : shards) taken_.insert(shard.name);
  }

  void add(const TensorShard& shard, const std::string& file) {
    check_writable(shard.name, shard.tensor);
    const Box box = box_of(shard);
    const Sizes shape = shard.shape.empty() ? box.sizes : shard.shape;
    // An empty box of a non-empty tensor is skipped.
    if (shard.tensor.numel() == 0 && elements_of(shape) > 0) return;
    const std::string dtype = dtype_name(shard.name, shard.tensor.scalar_type());
    const auto [place, is_new] = places_.try_emplace(shard.name, all.size());
    if (is_new) all.push_back({shard.name, dtype, shape, {}});
    IndexedTensor& tensor = all[place->second];
    if (!is_new && (shard.shape.empty() || tensor.shape != shape || tensor.dtype != dtype))
      throw UsageError(text("two tensors to be saved are called '", shard.name, "'"));
    const std::string key =
        is_new ? std::string() : unused_key(shard.name, tensor.boxes.size(), taken_);
    written.emplace_back(place->second, tensor.boxes.size());
    tensor.boxes.push_back({file, box, {}, key});
    tensors.emplace_back(tensor.key_of(tensor.boxes.back()), shard.tensor);
  }

  std::vector<IndexedTensor> all;
  NamedTensors tensors;
  std::vector<std::pair<std::size_t, std::size_t>> written;  // for each: index into `all`, box

 private:
  std::map<std::string, std::size_t> places_;
  std::set<std::string> taken_;
};

std::vector<IndexedTensor> write_group(const fs::path& fresh, const std::string& file,
                                       const std::vector<TensorShard>& shards) {
  GroupIndex group(shards);
  for (const TensorShard& shard : shards) group.add(shard, file);
  if (group.tensors.empty()) return {};
  write_tensors(fresh / file, group.tensors, {}, [&](std::size_t i, std::string_view bytes) {
    const auto [tensor, box] = group.written[i];
    group.all[tensor].boxes[box].hash = content_hash(bytes);
  });
  return std::move(group.all);
}

void check_group_name(const std::string& name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!plain)
    throw UsageError(text("'", name, "' cannot be the name of a group of tensors"),
                     {.hint = "It becomes part of file names: use a to z, 0 to 9 and '_'."});
}

}  // namespace

void write_checkpoint(const fs::path& folder, const TensorGroups& groups, const std::string& state,
                      const SaveRanks& ranks, const std::string& agreed) {
  SaveTask task;
  task.state = state;
  task.agreed = agreed;
  task.write_shard = [&](const fs::path& fresh) {
    CheckpointIndex shard;
    for (const auto& [group, tensors] : groups) {
      check_group_name(group);
      const std::string file = shard_file_name(group, ranks.rank, ranks.size);
      shard.groups[group] = write_group(fresh, file, tensors);
      if (!shard.groups[group].empty()) shard.files[file] = fs::file_size(fresh / file);
    }
    return shard;
  };
  save_over_ranks(folder, task, ranks);
}

}  // namespace trestle::checkpoint
