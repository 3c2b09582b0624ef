#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct zip;

// The zip archive that Python's torch.save writes: entries as they are, not compressed. Why libzip
// reads it and not libtorch: docs/decisions/0003-weights-from-python.md. No torch in here.
namespace trestle::checkpoint {

class ZipFile {
 public:
  // Throws FileError where it cannot be read, FormatError where it is no zip archive.
  explicit ZipFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  std::uint64_t file_size() const { return file_size_; }
  // The folder in the archive that holds "<name>", as "archive/" for "data.pkl"; FormatError where
  // there is none.
  std::string folder_of(const std::string& name) const;
  bool has(const std::string& entry) const;
  // Bytes of an entry; never more than file_size(). FormatError where there is no such entry, or it
  // is compressed, encrypted, or said to be larger than the file.
  std::uint64_t size(const std::string& entry) const;
  // The first `bytes` bytes of an entry; FormatError where it is cut short or broken.
  void read(const std::string& entry, void* into, std::uint64_t bytes) const;
  std::string read(const std::string& entry) const;  // all of it

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  [[noreturn]] void fail(const std::string& what, std::string hint = {}) const;
  std::int64_t number_of(const std::string& entry) const;

  std::string path_;
  std::uint64_t file_size_ = 0;
  std::unique_ptr<zip, Close> archive_;
};

}  // namespace trestle::checkpoint
