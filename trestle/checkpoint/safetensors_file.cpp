#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/safetensors_file.h"

namespace trestle::checkpoint {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path.string()) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none))
    throw FileError("there is no such weights file", {.file = path_});
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about {};
  if (descriptor_ < 0 || fstat(descriptor_, &about) != 0)
    throw FileError(text("cannot be read: ", std::strerror(errno)), {.file = path_});
  size_ = static_cast<std::uint64_t>(about.st_size);
  try {
    read_header(size_);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}
SafetensorsFile::~SafetensorsFile() { close(descriptor_); }

void SafetensorsFile::map() {
  if (!mapping_) mapping_ = MappedFile::map(descriptor_, size_);
}

WeightsFile::Mapped SafetensorsFile::mapped(std::size_t tensor) const {
  return {mapping_, begins_[tensor]};
}

std::vector<at::Tensor> SafetensorsFile::load(const std::vector<std::size_t>& wanted) const {
  return load_by_fill(wanted);
}

void SafetensorsFile::fill(const std::vector<Read>& reads) const {
  std::vector<ByteRange> ranges;
  for (const Read& read : reads) ranges.push_back(range_of(read.tensor, read.into));
  read_ranges(ranges);
}

void SafetensorsFile::read_header(std::uint64_t size) {
  std::uint64_t length = 0;
  if (size >= sizeof length) read_range({0, reinterpret_cast<char*>(&length), sizeof length});
  if (size < sizeof length || length > size - sizeof length || length > longest_header)
    throw FormatError(
        text("not a safetensors file: ", size, " bytes long, but its header length is ", length),
        {.file = path_});
  std::string json(length, '\0');
  read_range({sizeof length, json.data(), length});
  const std::uint64_t data = sizeof length + length;
  SafetensorsHeader header = parse_header(json, size - data, path_);
  metadata_ = std::move(header.metadata);
  for (TensorEntry& entry : header.tensors) {
    begins_.push_back(data + entry.begin);
    tensors_.push_back({std::move(entry.name), scalar_type(entry.dtype), std::move(entry.shape)});
  }
}

void SafetensorsFile::read_elements(const std::vector<Elements>& wanted) const {
  std::vector<ByteRange> ranges;
  for (const Elements& one : wanted) {
    ByteRange range = range_of(one.tensor, one.into);
    range.begin += static_cast<std::uint64_t>(one.first) * one.into.element_size();
    ranges.push_back(range);
  }
  read_ranges(ranges);
}

// The last dimensions that the box has whole are one range of the file for each index of those
// before.
at::Tensor SafetensorsFile::read_box(std::size_t tensor, at::IntArrayRef offset,
                                     at::IntArrayRef sizes) const {
  const StoredTensor& stored = tensors_[tensor];
  const at::Tensor box = at::empty(sizes, at::dtype(stored.type));
  std::size_t along = sizes.size();  // ranges lie along the dimension before
  std::int64_t length = 1, stride = 1;
  while (along > 0 && sizes[along - 1] == stored.shape[along - 1]) {
    length *= sizes[--along];
    stride = length;
  }
  if (along > 0) length *= sizes[--along];
  if (box.numel() == 0) return box;
  std::vector<Elements> ranges;
  const at::Tensor pieces = box.view({-1, length});
  for (std::int64_t piece = 0; piece < pieces.size(0); ++piece) {
    std::int64_t first = along < sizes.size() ? offset[along] * stride : 0;
    std::int64_t rest = piece, below = stride * (along < sizes.size() ? stored.shape[along] : 1);
    for (std::size_t d = along; d-- > 0;) {
      first += (offset[d] + rest % sizes[d]) * below;
      rest /= sizes[d];
      below *= stored.shape[d];
    }
    ranges.push_back({tensor, first, pieces[piece]});
  }
  read_elements(ranges);
  return box;
}

SafetensorsFile::ByteRange SafetensorsFile::range_of(std::size_t tensor,
                                                     const at::Tensor& into) const {
  return {begins_[tensor], static_cast<char*>(into.mutable_data_ptr()), into.nbytes()};
}

void SafetensorsFile::read_range(ByteRange range) const {
  while (range.bytes > 0) {
    const ssize_t got = pread(descriptor_, range.to, range.bytes, static_cast<off_t>(range.begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(text("cannot be read: ", std::strerror(errno)), {.file = path_});
    if (got == 0)
      throw FileError("could not be read to its end: it became shorter", {.file = path_});
    range.begin += static_cast<std::uint64_t>(got);
    range.to += got;
    range.bytes -= static_cast<std::uint64_t>(got);
  }
}

// Uses several threads: a single one copies slower than the memory allows.
void SafetensorsFile::read_ranges(const std::vector<ByteRange>& whole) const {
  constexpr std::uint64_t most = 4 << 20;
  std::vector<ByteRange> ranges;
  for (ByteRange range : whole) {
    for (; range.bytes > most; range.begin += most, range.to += most, range.bytes -= most)
      ranges.push_back({range.begin, range.to, most});
    ranges.push_back(range);
  }
  at::parallel_for(0, static_cast<std::int64_t>(ranges.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i)
                       read_range(ranges[static_cast<std::size_t>(i)]);
                   });
}

std::unique_ptr<WeightsFile> open_safetensors(const std::filesystem::path& path) {
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace trestle::checkpoint
