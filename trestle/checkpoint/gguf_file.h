#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/gguf/gguf_header.h"
#include "trestle/checkpoint/weights_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// A GGUF file of llama.cpp. All tensors are listed as float, and quantised ones are converted when
// they are loaded: 538 MB of memory for 135 million parameters. The metadata has the strings and
// numbers of the header without its arrays.
class GgufFile : public WeightsFile {
 public:
  // Throws FileError if it cannot be read, and FormatError like read_gguf_header().
  explicit GgufFile(const std::filesystem::path& path);

  const GgufHeader& header() const { return header_; }

 protected:
  std::vector<at::Tensor> load(const std::vector<std::size_t>& wanted) const override;
  // Reads whole rows.
  at::Tensor load_box(const Read& read) const override;
  bool can_fill() const override { return true; }  // any bytes are numbers
  // Fills tensors of bf16 too: a second pass over the numbers of a model takes longer than the
  // first one.
  bool fills(const Read& read) const override;
  void fill(const std::vector<Read>& reads) const override;

 private:
  // Some blocks of a tensor, and the memory for their elements.
  struct BlockRange {
    GgufType type = GgufType::F32;
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    at::Tensor to;  // has one dimension
  };
  void read_blocks(const std::vector<BlockRange>& whole) const;

  FileBytes file_;
  GgufHeader header_;
};

}  // namespace trestle::checkpoint
