#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct zip;

// A zip archive of Python's torch.save: entries are not compressed.
// docs/decisions/0003-weights-from-python.md gives the reason for reading it with libzip and not
// with libtorch. Torch-free.
namespace trestle::checkpoint {

class ZipFile {
 public:
  // Throws FileError if it cannot be read, FormatError if it is not a zip archive.
  explicit ZipFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  std::uint64_t file_size() const { return file_size_; }
  // The folder in the archive that contains "<name>", such as "archive/" for "data.pkl";
  // FormatError if there is none.
  std::string folder_of(const std::string& name) const;
  bool has(const std::string& entry) const;
  // Size of an entry in bytes; never more than file_size(). Throws FormatError if there is no such
  // entry, or if it is compressed, encrypted, or larger than the file according to the archive.
  std::uint64_t size(const std::string& entry) const;
  // Reads the first `bytes` bytes of an entry; FormatError if it is cut short or broken.
  void read(const std::string& entry, void* into, std::uint64_t bytes) const;
  std::string read(const std::string& entry) const;  // reads all of it

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  [[noreturn]] void fail(const std::string& what, std::string hint = {}) const;
  void refuse_doubles() const;
  std::int64_t number_of(const std::string& entry) const;

  std::string path_;
  std::uint64_t file_size_ = 0;
  std::unique_ptr<zip, Close> archive_;
};

}  // namespace trestle::checkpoint
