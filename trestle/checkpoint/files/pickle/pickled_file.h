#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/files/pickle/zip_file.h"

// An open file of Python's torch.save: its pickle is parsed, and its storages can be read. No code
// is executed, and no size is used before it is compared with the file's. Torch-free.
namespace trestle::checkpoint {

class PickledFile {
 public:
  // Throws FileError if it cannot be read; FormatError if it is not such a file, has other contents
  // than tensors in plain containers, is a TorchScript program, or is big-endian.
  explicit PickledFile(const std::filesystem::path& path);

  const std::string& path() const { return zip_.path(); }
  const Pickle& pickle() const { return pickle_; }

  // Call it for all tensors that will be read, with their names for messages. Throws FormatError if
  // one is larger than the file (one element may stand for many), if a storage is larger than its
  // entry, or if the storages together are larger than the file.
  struct Named {
    std::string name;
    std::size_t tensor = 0;  // of Pickle::tensors
  };
  void check(const std::vector<Named>& tensors) const;

  // Reads all elements of storage `number`, which must have been checked. `bytes` is the number of
  // elements times their size.
  void read_storage(std::size_t number, void* into, std::uint64_t bytes) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void throw_if_unsupported() const;
  void check_size(const Named& named) const;
  void check_storages(std::vector<std::size_t> used) const;
  std::string entry(std::size_t storage) const;

  ZipFile zip_;
  std::string folder_;
  std::string bytes_;  // the strings of pickle_ refer to these
  Pickle pickle_;
};

}  // namespace trestle::checkpoint
