#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trestle/checkpoint/files/checkpoint_index.h"
#include "trestle/checkpoint/files/pickle/tensor_archive.h"

// Builds the index of a folder that another program wrote. Torch-free. Internal to
// trestle/checkpoint.
namespace trestle::checkpoint {

// A tensor in a file: the elements, in row-major order, and the file's name in the folder.
struct ElementsOfFile {
  std::string file;
  StoredElements elements;
};

class ForeignIndex {
 public:
  // `folder` is the name for messages.
  ForeignIndex(FolderKind kind, std::string folder);

  // A box of a tensor whose elements are at `stored`. All boxes of a tensor need one dtype and
  // shape. Throws FormatError otherwise, and for a box outside of the shape.
  void add_box(const std::string& group, const std::string& name, const Sizes& shape,
               const Box& box, const ElementsOfFile& stored);
  // Elements [begin, begin + count) of a tensor in row-major order.
  void add_range(const std::string& group, const std::string& name, const Sizes& shape,
                 std::int64_t begin, std::int64_t count, const ElementsOfFile& stored);
  // A number of steps as an integer scalar.
  void add_count(const std::string& group, const std::string& name, double value);

  // Throws FormatError for a tensor with elements that no file or two files contain, and for
  // storages that overlap in a file.
  CheckpointIndex finish(std::string state);

 private:
  IndexedTensor& tensor(const std::string& group, const std::string& name, const std::string& dtype,
                        const Sizes& shape, const std::string& file);
  RecordPlace place(const ElementsOfFile& stored);
  void refuse_overlaps() const;

  std::string folder_;
  CheckpointIndex index_;
  std::map<std::pair<std::string, std::string>, std::size_t> tensors_;    // by group and name
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> records_;  // by file and begin
  std::map<std::size_t, std::uint64_t> used_;  // bytes of the tensors in each record
};

}  // namespace trestle::checkpoint
