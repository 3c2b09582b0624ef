#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/comm/engine_calls.h"

// Collectives of CPU tensors made of messages between each two ranks, from and to the tensors' own memory: the engine's
// copy what they move, some of it twice. Tensors are flat. All wait, and throw what the engine throws.
//
// Large tensors go in pieces, so that what was received is still in a core's cache when it is added, and one piece is
// added, and sent on, while the next ones arrive.
namespace trestle::comm {

// `input` may be its own part of `output`.
void direct_all_gather(const Engine& engine, const at::Tensor& output, const at::Tensor& input);

// Sums and products are taken in the order of pairs.h.
void direct_reduce_scatter(const Engine& engine, const at::Tensor& output, const at::Tensor& input,
                           Reduce op);
void direct_all_reduce(const Engine& engine, const at::Tensor& tensor, Reduce op);

}  // namespace trestle::comm
