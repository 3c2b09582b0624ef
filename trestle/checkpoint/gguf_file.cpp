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
#include "trestle/checkpoint/box_read.h"
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

void GgufFile::fill(const std::vector<Read>& reads) const {
  std::vector<BlockRange> whole;
  for (const Read& read : reads) {
    const GgufTensor& tensor = header_.tensors[read.tensor];
    whole.push_back({tensor.type, tensor.begin, tensor.bytes, read.into.view(-1)});
  }
  read_blocks(whole);
}

// A row has whole blocks.
at::Tensor GgufFile::load_box(const Read& read) const {
  const GgufTensor& tensor = header_.tensors[read.tensor];
  const GgufBlock block = block_of(tensor.type);
  std::vector<std::int64_t> sizes = tensor.shape;
  sizes[0] = read.into.size(0);
  const at::Tensor rows = at::empty(sizes, at::kFloat);
  const auto bytes_of_rows = [&](std::int64_t count) {
    return tensor.bytes / static_cast<std::uint64_t>(tensor.shape[0]) *
           static_cast<std::uint64_t>(count);
  };
  const std::uint64_t row = bytes_of_rows(1);
  if (row % block.bytes != 0) return WeightsFile::load_box(read);
  read_blocks({{tensor.type, tensor.begin + bytes_of_rows(read.offset[0]), bytes_of_rows(sizes[0]),
                rows.view(-1)}});
  Sizes origin(sizes.size(), 0);
  origin[0] = read.offset[0];
  return box_view(rows, origin, {read.offset, read.into.sizes().vec()});
}

// Several threads read and convert, each a few blocks at a time.
void GgufFile::read_blocks(const std::vector<BlockRange>& whole) const {
  constexpr std::uint64_t most_bytes = 64 << 10;
  std::vector<BlockRange> ranges;
  for (const BlockRange& one : whole) {
    const GgufBlock block = block_of(one.type);
    const std::uint64_t at_once = most_bytes / block.bytes * block.bytes;
    for (std::uint64_t done = 0; done < one.bytes; done += at_once) {
      const std::uint64_t bytes = std::min(at_once, one.bytes - done);
      ranges.push_back(
          {one.type, one.begin + done, bytes,
           one.to.narrow(0, static_cast<std::int64_t>(done / block.bytes * block.elements),
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
