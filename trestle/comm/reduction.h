#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "trestle/comm/group.h"

namespace trestle::comm {

// The order in which reductions take the ranks: neighbours, then neighbours of these, as
// ((0 + 1) + (2 + 3)) + 4. Each half of a power-of-two number of ranks is a subtree of its own. So
// half as many ranks give the same bits if each has already added twice as much.
// Calls combine(a, b), a < b, for each addition of b to a; 0 holds the result.
template <class Combine>
void for_each_reduction_pair(std::size_t size, const Combine& combine) {
  for (std::size_t distance = 1; distance < size; distance *= 2)
    for (std::size_t at = 0; at + distance < size; at += 2 * distance) combine(at, at + distance);
}

// out = a op b, element by element; `out` may be `a` or `b`.
void reduce_to(at::Tensor out, const at::Tensor& a, const at::Tensor& b, Reduce op);
void reduce_into(const at::Tensor& sum, const at::Tensor& more, Reduce op);

// Whether the memory of two dense tensors overlaps.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace trestle::comm
