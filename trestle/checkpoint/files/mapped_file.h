#pragma once

#include <cstdint>
#include <memory>

// A file's bytes as memory. Torch-free. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// The first `bytes` bytes of an open file. Writing to the memory copies its page first: it reaches
// neither the file nor another process. The pages stay those of the file when its name is given to
// another file or removed. If the file itself becomes shorter, reading a page behind its end
// raises SIGBUS.
class MappedFile {
 public:
  // Null if the system maps no such file. The descriptor may be closed afterwards.
  static std::shared_ptr<MappedFile> map(int descriptor, std::uint64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Begins a page, so an offset of the file has the alignment that its address has.
  char* data() const { return data_; }
  // Starts to read a range from the disk, before it is used.
  void read_ahead(std::uint64_t begin, std::uint64_t bytes) const;

 private:
  MappedFile(char* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}

  char* data_;
  std::uint64_t bytes_;
};

}  // namespace trestle::checkpoint
