#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/weights_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

class SafetensorsFile : public WeightsFile {
 public:
  // Throws FileError if it cannot be read, FormatError if it is not such a file.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile() override;

  // A contiguous range of elements of tensor number `tensor`, from `first` on. The count is that of
  // `into`, which must be a contiguous CPU tensor of the same type. The caller must check the
  // range.
  struct Elements {
    std::size_t tensor = 0;
    std::int64_t first = 0;
    at::Tensor into;
  };
  void read_elements(const std::vector<Elements>& wanted) const;
  // The box of tensor number `tensor` with this offset and these sizes: reads its bytes alone.
  at::Tensor read_box(std::size_t tensor, at::IntArrayRef offset, at::IntArrayRef sizes) const;

  void map() override;
  Mapped mapped(std::size_t tensor) const override;

 protected:
  std::vector<at::Tensor> load(const std::vector<std::size_t>& wanted) const override;
  at::Tensor load_box(const Read& read) const override {
    return read_box(read.tensor, read.offset, read.into.sizes());
  }
  bool can_fill() const override { return true; }
  void fill(const std::vector<Read>& reads) const override;

 private:
  // A range of bytes of the file and its destination in memory.
  struct ByteRange {
    std::uint64_t begin = 0;
    char* to = nullptr;
    std::uint64_t bytes = 0;
  };
  void read_header(std::uint64_t size);
  ByteRange range_of(std::size_t tensor, const at::Tensor& into) const;
  void read_range(ByteRange range) const;
  void read_ranges(const std::vector<ByteRange>& whole) const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::shared_ptr<MappedFile> mapping_;
  std::vector<std::uint64_t> begins_;  // offset of each tensor's bytes in the file
};

// write_tensors() that calls `seen` with each tensor's number and bytes as they are written.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata,
                   const std::function<void(std::size_t, std::string_view)>& seen);

}  // namespace trestle::checkpoint
