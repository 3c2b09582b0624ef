#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/safetensors.h"

namespace trestle::checkpoint {

namespace {

constexpr const char* group = "weights";

SafetensorsHeader header_of_boxes(const std::vector<StoredTensor>& tensors,
                                  const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{{}, metadata};
  std::uint64_t position = 0;
  for (const auto& tensor : tensors) {
    std::uint64_t bytes = c10::elementSize(tensor.type);
    for (const auto size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
    header.tensors.push_back({tensor.name, dtype_name(tensor.name, tensor.type), tensor.shape,
                              position, position + bytes});
    position += bytes;
  }
  return header;
}

// Also removes the leftovers of a save over ranks that was killed.
void remove_shards(const std::filesystem::path& parts) {
  std::error_code ignored;
  std::filesystem::remove_all(parts, ignored);
  std::filesystem::remove_all(parts.string() + ".tmp", ignored);
}

}  // namespace

void write_as_one_file(const CheckpointFolder& folder, const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata) {
  const auto& tensors = folder.tensors(group);
  const std::string header = format_header(header_of_boxes(tensors, metadata));
  const std::uint64_t length = header.size();
  write_file(path, [&](std::ostream& out) {
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const auto& stored : tensors) {  // one at a time
      const auto one = folder.read(group, std::vector<std::string>{stored.name});
      const at::Tensor rows = one.at(0).second.contiguous();
      out.write(static_cast<const char*>(rows.const_data_ptr()),
                static_cast<std::streamsize>(rows.nbytes()));
    }
  });
}

void write_tensors_over_ranks(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const SaveRanks& ranks) {
  std::vector<TensorShard> own;
  for (const auto& [name, tensor] : tensors) own.push_back({.name = name, .tensor = tensor});
  write_boxes_over_ranks(path, own, metadata, ranks);
}

void write_boxes_over_ranks(const std::filesystem::path& path,
                            const std::vector<TensorShard>& boxes,
                            const std::map<std::string, std::string>& metadata,
                            const SaveRanks& ranks) {
  std::filesystem::path parts = path;
  parts += ".parts";
  if (ranks.size == 1) {
    NamedTensors all;
    for (const TensorShard& one : boxes) all.emplace_back(one.name, one.tensor);
    write_tensors(path, all, metadata);
    return remove_shards(parts);
  }
  write_checkpoint(parts, {{group, boxes}}, "{}", ranks);
  std::string failure;
  if (ranks.rank == 0) {
    try {
      write_as_one_file(CheckpointFolder(parts), path, metadata);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    remove_shards(parts);
  }
  failure = ranks.all_gather(failure).at(0);
  if (!failure.empty()) throw FileError(text("rank 0: ", failure));
}

}  // namespace trestle::checkpoint
