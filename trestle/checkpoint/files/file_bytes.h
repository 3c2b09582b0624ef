#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

// Reads ranges of a file, or of bytes in memory. Torch-free. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

class FileBytes {
 public:
  // Throws FileError if it cannot be read or is not a regular file.
  explicit FileBytes(const std::filesystem::path& path);
  // For tests: bytes under this name.
  FileBytes(std::string name, std::string bytes);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }

  // Throws FormatError if the range is not within the file, FileError if the system refuses.
  // Threads may read at once.
  void read(std::uint64_t begin, void* into, std::uint64_t bytes) const;
  // Compare the length with a limit before.
  std::string read(std::uint64_t begin, std::uint64_t bytes) const;
  // The checksum of a zip archive, over some bytes at a time.
  std::uint32_t crc32(std::uint64_t begin, std::uint64_t bytes) const;

 private:
  std::string name_, bytes_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
};

}  // namespace trestle::checkpoint
