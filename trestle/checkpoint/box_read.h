#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/checkpoint_index.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// A range of a stored box, and its destination in memory.
struct BoxRead {
  const IndexedTensor* tensor = nullptr;
  std::size_t stored = 0;
  Box box;  // in the coordinates of the whole tensor
  at::Tensor into;

  const StoredBox& source() const { return tensor->boxes[stored]; }
  const Box& stored_box() const { return source().box; }
  const std::string& key() const { return tensor->key_of(source()); }
  bool is_whole() const { return box == stored_box(); }
};

// The given box of a tensor that begins at `origin`; a view.
at::Tensor box_view(at::Tensor tensor, const Sizes& origin, const Box& box);

// The stored boxes of one file.
class BoxSource {
 public:
  virtual ~BoxSource() = default;

  // Throws FormatError if the file does not hold this box as the index describes it.
  virtual void check(const BoxRead& request) const = 0;
  // Elements of the stored box from number `first` on, into a contiguous CPU tensor.
  struct Elements {
    const BoxRead* request = nullptr;
    std::int64_t first = 0;
    at::Tensor into;
  };
  virtual void read(const std::vector<Elements>& wanted) const = 0;
};

// The records of a folder whose checksum has been compared.
struct VerifiedRecords {
  std::mutex lock;
  std::set<std::size_t> records;
};

// `folder` and `index` must outlive it.
std::unique_ptr<BoxSource> open_box_source(const std::filesystem::path& folder,
                                           const std::string& file, const CheckpointIndex& index,
                                           VerifiedRecords& verified);

}  // namespace trestle::checkpoint
