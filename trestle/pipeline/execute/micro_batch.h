#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <vector>

#include "trestle/nn/value.h"

// Splits a mini-batch into micro-batches, and merges their outputs.
namespace trestle::pipeline {

// Splits every tensor along dimension 0 into `count` views whose sizes differ by at most one,
// larger ones first: 7 samples in 4 micro-batches are 2, 2, 2, 1, and 9 are 3, 2, 2, 2. A
// mini-batch of fewer samples has one micro-batch a sample. None and 0-dim tensors go into every
// micro-batch.
//
// Throws UsageError if there is nothing to split, or if two tensors have different numbers of
// samples.
std::vector<nn::Values> split(const nn::Values& batch, int count);

// Splits every tensor into views of `size` samples, as torch's x.split(size). The last is smaller
// if the number of samples is not a multiple: 7 samples by 3 are 3, 3, 1. Otherwise as split();
// throws UsageError for a size below 1 too.
std::vector<nn::Values> split_by_size(const nn::Values& batch, std::int64_t size);

// By `split_size` if it is above 0, else into `micro_batches`.
std::vector<nn::Values> split(const nn::Values& batch, int micro_batches, std::int64_t split_size);

// The sizes of those micro-batches for a number of samples; and the split by known sizes.
std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches,
                                            std::int64_t split_size);
std::vector<nn::Values> split_as(const nn::Values& batch, const std::vector<std::int64_t>& sizes);

// The batch with its images (floating point, 4 dimensions) in this memory format; Preserve changes
// nothing.
nn::Values in_memory_format(nn::Values batch, at::MemoryFormat format);

// The size of dimension 0, which all tensors share that are not 0-dim. Throws as split().
std::int64_t sample_count(const nn::Values& batch);
// The same, or 0 if no tensor has a dimension 0.
std::int64_t known_sample_count(const nn::Values& batch);

// How many micro-batches split() makes, and split_by_size() for a number of samples.
int micro_batch_count(const nn::Values& batch, int count);
constexpr int micro_batch_count_by_size(std::int64_t samples, std::int64_t size) {
  return static_cast<int>((samples + size - 1) / size);
}

// The inverse for outputs: concatenates along dimension 0. An output that is None in every
// micro-batch stays None. Throws UsageError for an output that is None in some micro-batches only,
// and for a 0-dim output.
nn::Values merge(const std::vector<nn::Values>& micro_batches);
at::Tensor merge_one(const std::vector<nn::Values>& micro_batches, std::size_t output);

}  // namespace trestle::pipeline
