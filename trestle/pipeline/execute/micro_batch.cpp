#include "trestle/pipeline/execute/micro_batch.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::pipeline {
namespace {

bool is_batched(const nn::Value& value) { return value.defined() && value.dim() > 0; }

std::vector<std::int64_t> sizes_by_count(std::int64_t samples, int most) {
  const auto count = std::min<std::int64_t>(most, samples);
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < count; ++i)
    sizes.push_back(samples / count + (i < samples % count ? 1 : 0));
  return sizes;
}

std::vector<std::int64_t> sizes_by_size(std::int64_t samples, std::int64_t size) {
  if (size < 1)
    throw UsageError(text("a mini-batch cannot be split into micro-batches of ", size, " samples"));
  std::vector<std::int64_t> sizes(micro_batch_count_by_size(samples, size), size);
  sizes.back() = samples - size * static_cast<std::int64_t>(sizes.size() - 1);
  return sizes;
}

}  // namespace

std::vector<nn::Values> split_as(const nn::Values& batch, const std::vector<std::int64_t>& sizes) {
  std::vector<nn::Values> result(sizes.size());
  for (const auto& value : batch) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool whole = sizes.size() == 1 || !is_batched(value);
      result[i].push_back(whole ? value : value.narrow(0, begin, sizes[i]));
      begin += sizes[i];
    }
  }
  return result;
}

std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches,
                                            std::int64_t split_size) {
  return split_size > 0 ? sizes_by_size(samples, split_size)
                        : sizes_by_count(samples, micro_batches);
}

std::int64_t known_sample_count(const nn::Values& batch) {
  return std::any_of(batch.begin(), batch.end(), is_batched) ? sample_count(batch) : 0;
}

nn::Values in_memory_format(nn::Values batch, at::MemoryFormat format) {
  if (format == at::MemoryFormat::Preserve) return batch;
  for (auto& value : batch) {
    if (value.defined() && value.dim() == 4 && value.is_floating_point())
      value = value.contiguous(format);
  }
  return batch;
}

std::int64_t sample_count(const nn::Values& batch) {
  std::int64_t samples = -1;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!is_batched(batch[i])) continue;
    if (samples < 0) samples = batch[i].size(0);
    if (batch[i].size(0) != samples) {
      throw UsageError(
          text("tensor ", i, " of the mini-batch has ", batch[i].size(0), " samples (shape ",
               batch[i].sizes(), "), an earlier one has ", samples),
          {.hint = "All tensors of a mini-batch are split along dimension 0 together."});
    }
  }
  if (samples <= 0) {
    throw UsageError(samples < 0 ? "the mini-batch has no tensor with a batch dimension"
                                 : "the mini-batch is empty: its tensors have 0 samples",
                     {.hint = "Pass tensors whose dimension 0 counts samples, at least one."});
  }
  return samples;
}

int micro_batch_count(const nn::Values& batch, int count) {
  return static_cast<int>(std::min<std::int64_t>(count, sample_count(batch)));
}

std::vector<nn::Values> split(const nn::Values& batch, int count) {
  return split_as(batch, sizes_by_count(sample_count(batch), count));
}

std::vector<nn::Values> split_by_size(const nn::Values& batch, std::int64_t size) {
  return split_as(batch, sizes_by_size(sample_count(batch), size));
}

std::vector<nn::Values> split(const nn::Values& batch, int micro_batches, std::int64_t split_size) {
  return split_size > 0 ? split_by_size(batch, split_size) : split(batch, micro_batches);
}

at::Tensor merge_one(const std::vector<nn::Values>& micro_batches, std::size_t output) {
  std::vector<at::Tensor> outputs;
  for (const auto& values : micro_batches) {
    if (values.at(output).defined()) outputs.push_back(values[output]);
  }
  if (outputs.empty()) return {};
  if (micro_batches.size() == 1) return outputs[0];
  if (outputs.size() != micro_batches.size() || outputs[0].dim() == 0) {
    throw UsageError(
        text("output ", output, " of the model cannot be concatenated from ", micro_batches.size(),
             " micro-batches: ",
             outputs[0].dim() == 0 ? "it has no batch dimension" : "it is None in some of them"),
        {.hint = "Return tensors whose dimension 0 counts samples, or use one micro-batch."});
  }
  return at::cat(outputs);
}

nn::Values merge(const std::vector<nn::Values>& micro_batches) {
  nn::Values result;
  for (std::size_t i = 0; i < micro_batches.at(0).size(); ++i)
    result.push_back(merge_one(micro_batches, i));
  return result;
}

}  // namespace trestle::pipeline
