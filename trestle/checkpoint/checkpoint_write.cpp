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
    throw UsageError(text("the part of '", part.name, "' at [", join(part.offset, ", "),
                          "] of size [", join(sizes, ", "), "] does not lie in its shape, [",
                          join(part.shape, ", "), "]"));
  return box;
}

// What this rank has of a group. An empty box of a tensor that is not empty is nobody's.
std::vector<IndexedTensor> write_group(const fs::path& fresh, const std::string& file,
                                       const std::vector<TensorPart>& parts) {
  NamedTensors tensors;
  std::vector<IndexedTensor> all;
  for (const TensorPart& part : parts) {
    check_writable(part.name, part.tensor);
    const Box box = box_of(part);
    const Sizes shape = part.shape.empty() ? box.sizes : part.shape;
    if (part.tensor.numel() == 0 && elements_of(shape) > 0) continue;
    all.push_back(
        {part.name, dtype_name(part.name, part.tensor.scalar_type()), shape, {{file, box}}});
    tensors.emplace_back(part.name, part.tensor);
  }
  if (tensors.empty()) return {};
  write_tensors(fresh / file, tensors, {}, [&](std::size_t i, std::string_view bytes) {
    all[i].boxes[0].hash = content_hash(bytes);
  });
  return all;
}

void check_group_name(const std::string& name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!plain)
    throw UsageError(text("a group of tensors cannot be called '", name, "'"),
                     {.hint = "Its name is that of a file: a to z, 0 to 9 and '_'."});
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
