#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trestle::nn {

// When a pipeline's training step updates the running statistics of batch norms. Each micro-batch
// is always normalized by its own statistics.
enum class BatchNormStatistics : std::uint8_t {
  EachMicroBatch,  // once for each micro-batch, like a loop over micro-batches
  WholeBatch,      // once for the mini-batch, by its own statistics (DeferredBatchNorm);
                   // torchgpipe's deferred_batch_norm
  EachRun,         // once for each micro-batch and again when it is recomputed: like torchgpipe
                   // with activation checkpointing and plain batch norm
};

// Parses a recipe's name: "each_micro_batch", "whole_batch", "each_run". Throws UsageError that
// suggests the nearest name.
BatchNormStatistics parse_batch_norm_statistics(std::string_view name);
std::vector<std::string> batch_norm_statistics_names();

}  // namespace trestle::nn
