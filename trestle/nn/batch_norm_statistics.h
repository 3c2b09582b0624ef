#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trestle::nn {

// What moves the running statistics of batch norms in a pipeline's training step. Each micro-batch
// is normalised by its own statistics in any case.
enum class BatchNormStatistics : std::uint8_t {
  EachMicroBatch,  // every micro-batch moves them once, as a loop over micro-batches does
  WholeBatch,      // the mini-batch moves them once, by its own statistics (DeferredBatchNorm);
                   // torchgpipe's deferred_batch_norm
  EachRun,  // every micro-batch moves them, and again when it is recomputed: as in torchgpipe
            // with activation checkpointing and plain batch norm
};

// By name, for recipes: "each_micro_batch", "whole_batch", "each_run". Throws UsageError with the
// nearest name.
BatchNormStatistics parse_batch_norm_statistics(std::string_view name);
std::vector<std::string> batch_norm_statistics_names();

}  // namespace trestle::nn
