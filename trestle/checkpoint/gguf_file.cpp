#include "trestle/checkpoint/gguf_file.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

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
  at::Tensor to;  // has one dimension
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

bool GgufFile::fills(const Read& read) const {
  const at::Tensor& into = read.into;
  return WeightsFile::fills(read) ||
         (read.offset.empty() && into.is_cpu() && into.is_contiguous() && !into.is_neg() &&
          into.scalar_type() == at::kBFloat16);
}

// Several threads read and convert, each a few blocks at a time.
void GgufFile::fill(const std::vector<Read>& reads) const {
  constexpr std::uint64_t most_bytes = 64 << 10;
  std::vector<BlockRange> ranges;
  for (const Read& read : reads) {
    const GgufTensor& tensor = header_.tensors[read.tensor];
    const GgufBlock block = block_of(tensor.type);
    const std::uint64_t at_once = most_bytes / block.bytes * block.bytes;
    const at::Tensor into = read.into.view(-1);
    for (std::uint64_t done = 0; done < tensor.bytes; done += at_once) {
      const std::uint64_t bytes = std::min(at_once, tensor.bytes - done);
      ranges.push_back(
          {tensor.type, tensor.begin + done, bytes,
           into.narrow(0, static_cast<std::int64_t>(done / block.bytes * block.elements),
                       static_cast<std::int64_t>(bytes / block.bytes * block.elements))});
    }
  }
  at::parallel_for(
      0, static_cast<std::int64_t>(ranges.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        const at::NoGradGuard no_grad;  // each thread has its own mode
        std::string buffer(most_bytes, '\0');
        at::Tensor floats;
        for (std::int64_t i = begin; i < end; ++i) {
          const BlockRange& range = ranges[static_cast<std::size_t>(i)];
          file_.read(range.begin, buffer.data(), range.bytes);
          const std::string_view blocks = std::string_view(buffer).substr(0, range.bytes);
          if (range.to.scalar_type() == at::kFloat) {
            dequantise(range.type, blocks, range.to.mutable_data_ptr<float>());
            continue;
          }
          // Few enough for the processor's cache.
          if (!floats.defined() || floats.numel() < range.to.numel())
            floats = at::empty({range.to.numel()}, at::kFloat);
          dequantise(range.type, blocks, floats.mutable_data_ptr<float>());
          at::Tensor to = range.to;
          to.copy_(floats.narrow(0, 0, to.numel()));
        }
      });
}

std::unique_ptr<WeightsFile> open_gguf(const std::filesystem::path& path) {
  return std::make_unique<GgufFile>(path);
}

}  // namespace trestle::checkpoint
