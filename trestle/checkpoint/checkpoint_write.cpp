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

Box box_of(const TensorPart& part) {
  const Sizes sizes = part.tensor.sizes().vec();
  if (part.offset.empty() && part.shape.empty()) return whole_box(sizes);
  const Box box{part.offset, sizes};
  if (!lies_in(box, part.shape))
    throw UsageError(text("the box of '", part.name, "' at [", join(part.offset, ", "),
                          "] of size [", join(sizes, ", "), "] is not within its shape, [",
                          join(part.shape, ", "), "]"));
  return box;
}

// A key that no other tensor in the file has: "w[1]" for the second box of w.
std::string unused_key(const std::string& name, std::size_t box, std::set<std::string>& taken) {
  std::string key = text(name, "[", box, "]");
  while (!taken.insert(key).second) key += "_";
  return key;
}

// This rank's tensors of a group with their boxes; `tensors` has them by their keys in the file.
class GroupPart {
 public:
  explicit GroupPart(const std::vector<TensorPart>& parts) {
    for (const TensorPart& part : parts) taken_.insert(part.name);
  }

  void add(const TensorPart& part, const std::string& file) {
    check_writable(part.name, part.tensor);
    const Box box = box_of(part);
    const Sizes shape = part.shape.empty() ? box.sizes : part.shape;
    // An empty box of a non-empty tensor is skipped.
    if (part.tensor.numel() == 0 && elements_of(shape) > 0) return;
    const std::string dtype = dtype_name(part.name, part.tensor.scalar_type());
    const auto [place, is_new] = places_.try_emplace(part.name, all.size());
    if (is_new) all.push_back({part.name, dtype, shape, {}});
    IndexedTensor& tensor = all[place->second];
    if (!is_new && (part.shape.empty() || tensor.shape != shape || tensor.dtype != dtype))
      throw UsageError(text("two tensors to be saved are called '", part.name, "'"));
    const std::string key =
        is_new ? std::string() : unused_key(part.name, tensor.boxes.size(), taken_);
    written.emplace_back(place->second, tensor.boxes.size());
    tensor.boxes.push_back({file, box, {}, key});
    tensors.emplace_back(tensor.key_of(tensor.boxes.back()), part.tensor);
  }

  std::vector<IndexedTensor> all;
  NamedTensors tensors;
  std::vector<std::pair<std::size_t, std::size_t>> written;  // for each: index into `all`, box

 private:
  std::map<std::string, std::size_t> places_;
  std::set<std::string> taken_;
};

std::vector<IndexedTensor> write_group(const fs::path& fresh, const std::string& file,
                                       const std::vector<TensorPart>& parts) {
  GroupPart group(parts);
  for (const TensorPart& part : parts) group.add(part, file);
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
  task.write_part = [&](const fs::path& fresh) {
    CheckpointIndex part;
    for (const auto& [group, tensors] : groups) {
      check_group_name(group);
      const std::string file = part_name(group, ranks.rank, ranks.size);
      part.groups[group] = write_group(fresh, file, tensors);
      if (!part.groups[group].empty()) part.files[file] = fs::file_size(fresh / file);
    }
    return part;
  };
  save_over_ranks(folder, task, ranks);
}

}  // namespace trestle::checkpoint
