#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <vector>

#include "trestle/nn/value.h"

// Cutting a mini-batch into micro-batches and putting the pieces together again.
namespace trestle::pipeline {

// Cuts every tensor along dimension 0 into `pieces` parts whose sizes differ by one at most, the
// larger ones first: 7 samples in 4 pieces are 2, 2, 2, 1 and 9 are 3, 2, 2, 2. A batch of fewer
// samples than pieces gives one piece a sample. None and 0-dim tensors go into every piece. The
// parts are views.
//
// Throws UsageError if there is nothing to cut, or if two tensors have different numbers of
// samples.
std::vector<nn::Values> split(const nn::Values& batch, int pieces);

// Cuts every tensor into parts of `size` samples, the last one smaller where the batch does not go
// up in them, as torch's x.split(size): 7 samples by 3 are 3, 3, 1. Otherwise as split(); throws
// UsageError too for a size below 1.
std::vector<nn::Values> split_by_size(const nn::Values& batch, std::int64_t size);

// As the options say: by `split_size` where it is above 0, else into `micro_batches` pieces.
std::vector<nn::Values> split(const nn::Values& batch, int micro_batches, std::int64_t split_size);

// The sizes of those pieces for a batch of so many samples, and the batch cut into pieces of known
// sizes.
std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches,
                                            std::int64_t split_size);
std::vector<nn::Values> split_as(const nn::Values& batch, const std::vector<std::int64_t>& sizes);

// The batch with its images (floating point, four dimensions) in this order in memory; Preserve
// leaves them as they are.
nn::Values in_memory_format(nn::Values batch, at::MemoryFormat format);

// The size of dimension 0 that all tensors of a batch have which have one. Throws as split().
std::int64_t sample_count(const nn::Values& batch);
// The same, or 0 where no tensor of the batch has one.
std::int64_t known_sample_count(const nn::Values& batch);

// How many pieces split() makes, and split_by_size() of so many samples.
int micro_batch_count(const nn::Values& batch, int pieces);
constexpr int micro_batch_count_by_size(std::int64_t samples, std::int64_t size) {
  return static_cast<int>((samples + size - 1) / size);
}

// The inverse for outputs: concatenates along dimension 0. An output that is None in every piece
// stays None. Throws UsageError for an output that is None in some pieces only, or that has no
// dimension to be concatenated along.
nn::Values merge(const std::vector<nn::Values>& pieces);
at::Tensor merge_one(const std::vector<nn::Values>& pieces, std::size_t output);

}  // namespace trestle::pipeline
