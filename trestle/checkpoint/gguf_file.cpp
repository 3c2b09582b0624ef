#include "trestle/checkpoint/gguf_file.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/checkpoint/files/gguf/dequantise.h"

namespace trestle::checkpoint {

namespace {

std::optional<std::string> as_word(const GgufValue& value) {
  return std::visit(
      [](const auto& one) -> std::optional<std::string> {
        using Value = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Value, bool>) {
          return one ? "true" : "false";
        } else if constexpr (std::is_same_v<Value, std::string> || std::is_arithmetic_v<Value>) {
          return text(one);
        } else {
          return std::nullopt;
        }
      },
      value);
}

// Some blocks of a tensor, and the memory for their elements.
struct BlockRange {
  GgufType type = GgufType::F32;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  float* to = nullptr;
};

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path)
    : file_(path), header_(read_gguf_header(file_)) {
  for (const GgufTensor& tensor : header_.tensors)
    tensors_.push_back({tensor.name, at::kFloat, tensor.shape});
  for (const auto& [key, value] : header_.metadata)
    if (auto word = as_word(value)) metadata_[key] = *std::move(word);
}

std::vector<at::Tensor> GgufFile::load(const std::vector<std::size_t>& wanted) const {
  return load_by_fill(wanted);
}

// Several threads read and convert, each a few blocks at a time.
void GgufFile::fill(const std::vector<Read>& reads) const {
  constexpr std::uint64_t most_bytes = 256 << 10;
  std::vector<BlockRange> ranges;
  for (const Read& read : reads) {
    const GgufTensor& tensor = header_.tensors[read.tensor];
    const GgufBlock block = block_of(tensor.type);
    const std::uint64_t at_once = most_bytes / block.bytes * block.bytes;
    auto* to = read.into.mutable_data_ptr<float>();
    for (std::uint64_t done = 0; done < tensor.bytes; done += at_once)
      ranges.push_back({tensor.type, tensor.begin + done, std::min(at_once, tensor.bytes - done),
                        to + done / block.bytes * block.elements});
  }
  at::parallel_for(
      0, static_cast<std::int64_t>(ranges.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        std::string buffer(most_bytes, '\0');
        for (std::int64_t i = begin; i < end; ++i) {
          const BlockRange& range = ranges[static_cast<std::size_t>(i)];
          file_.read(range.begin, buffer.data(), range.bytes);
          dequantise(range.type, std::string_view(buffer).substr(0, range.bytes), range.to);
        }
      });
}

std::unique_ptr<WeightsFile> open_gguf(const std::filesystem::path& path) {
  return std::make_unique<GgufFile>(path);
}

}  // namespace trestle::checkpoint
