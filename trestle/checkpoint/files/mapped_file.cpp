#include "trestle/checkpoint/files/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

namespace trestle::checkpoint {

std::shared_ptr<MappedFile> MappedFile::map(int descriptor, std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  // MAP_NORESERVE: the pages that are never written need no memory, so none is set aside for them.
  void* const data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (data == MAP_FAILED) return nullptr;
  return std::shared_ptr<MappedFile>(new MappedFile(static_cast<char*>(data), bytes));
}

MappedFile::~MappedFile() { munmap(data_, static_cast<std::size_t>(bytes_)); }

void MappedFile::read_ahead(std::uint64_t begin, std::uint64_t bytes) const {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t first = begin / page * page;
  madvise(data_ + first, static_cast<std::size_t>(begin + bytes - first), MADV_WILLNEED);
}

}  // namespace trestle::checkpoint
