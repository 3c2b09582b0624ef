#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "trestle/checkpoint/files/file_bytes.h"

// Finds the entries of a zip archive within a file, so that parts of them can be read. libzip reads
// entries from their begin only, and only archives that are whole files. Torch-free. Internal to
// trestle/checkpoint.
namespace trestle::checkpoint {

// The bytes of an entry that is not compressed.
struct ZipRecord {
  std::uint64_t begin = 0, bytes = 0;  // in the file
  std::uint32_t crc = 0;

  friend bool operator==(const ZipRecord&, const ZipRecord&) = default;
};

// The entries of the archive in bytes [begin, begin + bytes) of the file, by name. Throws
// FormatError for anything that is not a zip archive of entries as torch.save writes them: stored,
// not encrypted, each name once, within the range.
std::map<std::string, ZipRecord> find_zip_records(const FileBytes& file, std::uint64_t begin,
                                                  std::uint64_t bytes);

}  // namespace trestle::checkpoint
