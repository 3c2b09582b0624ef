#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/comm/backends/backend_calls.h"

// Collectives of flat CPU tensors, made of messages between all pairs of ranks. The messages read
// and write the tensors' own memory; Gloo's collectives copy what they move, partly twice. All
// functions wait, and throw what the backend throws.
//
// Large tensors go in chunks: a received chunk is still in a core's cache when it is added, and one
// chunk is added and forwarded while the next ones arrive.
namespace trestle::comm {

// `input` may be this rank's shard of `output`.
void direct_all_gather(const BackendContext& context, const at::Tensor& output,
                       const at::Tensor& input);

// Both reduce in the order of reduction.h.
void direct_reduce_scatter(const BackendContext& context, const at::Tensor& output,
                           const at::Tensor& input, Reduce op);
void direct_all_reduce(const BackendContext& context, const at::Tensor& tensor, Reduce op);

}  // namespace trestle::comm
