#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/files/pickle.h"
#include "trestle/checkpoint/files/zip_file.h"

// A file of Python's torch.save, open: what it says is parsed, and the numbers of its storages can be
// read. Nothing in it is run, and no size is believed before the file's own has been looked at. No
// torch in here.
namespace trestle::checkpoint {

class PickledFile {
 public:
  // Throws FileError where it cannot be read; FormatError where it is no such file, says more than
  // tensors in plain containers, is a TorchScript program, or was written high byte first.
  explicit PickledFile(const std::filesystem::path& path);

  const std::string& path() const { return zip_.path(); }
  const Pickle& pickle() const { return pickle_; }

  // To be called for all tensors that will be read, with the names that messages give them. Throws
  // FormatError where one is larger than the file (one element may stand for many), a storage is
  // said to have more than its entry, or they are more than the file together.
  struct Named {
    std::string name;
    std::size_t tensor = 0;  // of Pickle::tensors
  };
  void check(const std::vector<Named>& tensors) const;

  // All numbers of storage `number`, which has been checked: `bytes` are its elements times their
  // size.
  void read_storage(std::size_t number, void* into, std::uint64_t bytes) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void refuse_others() const;
  void check_size(const Named& named) const;
  void check_storages(std::vector<std::size_t> used) const;
  std::string entry(std::size_t storage) const;

  ZipFile zip_;
  std::string folder_;
  std::string bytes_;  // that the pickle's words lie in
  Pickle pickle_;
};

}  // namespace trestle::checkpoint
