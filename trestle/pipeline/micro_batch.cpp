#include "trestle/pipeline/micro_batch.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::pipeline {
namespace {

bool is_batched(const nn::Value& value) { return value.defined() && value.dim() > 0; }

}  // namespace

std::int64_t sample_count(const nn::Values& batch) {
  std::int64_t samples = -1;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!is_batched(batch[i])) continue;
    if (samples < 0) samples = batch[i].size(0);
    if (batch[i].size(0) != samples) {
      throw UsageError(
          text("tensor ", i, " of the mini-batch has ", batch[i].size(0), " samples (shape ",
               batch[i].sizes(), "), an earlier one has ", samples),
          {.hint = "All tensors of a mini-batch are cut along dimension 0 together."});
    }
  }
  if (samples <= 0) {
    throw UsageError(samples < 0 ? "the mini-batch has no tensor with a batch dimension"
                                 : "the mini-batch is empty: its tensors have 0 samples",
                     {.hint = "Pass tensors whose dimension 0 counts samples, at least one."});
  }
  return samples;
}

int piece_count(const nn::Values& batch, int pieces) {
  return static_cast<int>(std::min<std::int64_t>(pieces, sample_count(batch)));
}

std::vector<nn::Values> split(const nn::Values& batch, int pieces) {
  const int count = piece_count(batch, pieces);
  std::vector<nn::Values> result(count);
  for (const auto& value : batch) {
    if (!is_batched(value)) {
      for (auto& piece : result) piece.push_back(value);
      continue;
    }
    const std::int64_t samples = value.size(0);
    std::int64_t begin = 0;
    for (int i = 0; i < count; ++i) {
      const std::int64_t size = samples / count + (i < samples % count ? 1 : 0);
      result[i].push_back(count == 1 ? value : value.narrow(0, begin, size));
      begin += size;
    }
  }
  return result;
}

at::Tensor merge_one(const std::vector<nn::Values>& pieces, std::size_t output) {
  std::vector<at::Tensor> parts;
  for (const auto& piece : pieces) {
    if (piece.at(output).defined()) parts.push_back(piece[output]);
  }
  if (parts.empty()) return {};
  if (pieces.size() == 1) return parts[0];
  if (parts.size() != pieces.size() || parts[0].dim() == 0) {
    throw UsageError(
        text("output ", output, " of the model cannot be put together from ", pieces.size(),
             " micro-batches: ",
             parts[0].dim() == 0 ? "it has no batch dimension" : "it is None in some of them"),
        {.hint = "Return tensors whose dimension 0 counts samples, or use one micro-batch."});
  }
  return at::cat(parts);
}

nn::Values merge(const std::vector<nn::Values>& pieces) {
  nn::Values result;
  for (std::size_t i = 0; i < pieces.at(0).size(); ++i) result.push_back(merge_one(pieces, i));
  return result;
}

}  // namespace trestle::pipeline
