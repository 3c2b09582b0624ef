#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "trestle/tensor_parallel/tensor_ranks.h"

// Collectives with a backward. Each changes how a tensor lies on the ranks, and the type says how
// it lies: a value in the forward, and its gradient in the backward. A wrong pair, such as a
// gather whose backward keeps a slice before work that each rank does a part of, does not compile.
//
//   Replicated x(input);                                  // the same on all ranks
//   Branched b = branch(ranks, x);                        // each rank computes its own columns
//   Sharded h{at::relu(at::linear(b.tensor, w1)), -1, 64};
//   Partial y{at::linear(h.tensor, w2)};                  // a term of the sum
//   Replicated z = reduce(ranks, y);
//
// The names in Megatron-LM are in docs/tensor_parallel.md. One rank alone sends nothing and gets
// its tensor back. Every rank calls the same operators in the same order, and so does the backward.
namespace trestle::tensor_parallel {

// Whole and equal on all ranks. So is its gradient: each rank computes all of it. The loss is
// Replicated.
//
// A tensor of a program's own work becomes Replicated by the constructor, which throws UsageError
// if the tensor was computed from a Branched one and not reduced or gathered since: each rank would
// compute a part of its gradient alone.
struct Replicated {
  explicit Replicated(at::Tensor x);
  at::Tensor tensor;

 private:
  friend struct Trusted;
  Replicated() = default;
};

// Whole and equal on all ranks. Each rank uses it for a part of the work, so each rank's gradient
// is one term of a sum.
struct Branched {
  at::Tensor tensor;

 private:
  friend struct Trusted;
  Branched() = default;
};

// A term of a sum over the ranks. Its gradient is whole and equal on all ranks. The constructor
// throws UsageError if the tensor was computed from a Replicated one without branch(): each rank
// would add a gradient to its own copy alone.
struct Partial {
  explicit Partial(at::Tensor x);
  at::Tensor tensor;

 private:
  friend struct Trusted;
  Partial() = default;
};

// This rank's even_range() of a dimension with `whole` indices. So is its gradient. The constructor
// checks as that of Partial.
struct Sharded {
  Sharded(at::Tensor x, std::int64_t dimension, std::int64_t whole);
  at::Tensor tensor;
  std::int64_t dimension = 0;
  std::int64_t whole = 0;

 private:
  friend struct Trusted;
  Sharded() = default;
};

// Forward                                                                    // backward
Branched branch(const TensorRanks& ranks, const Replicated& x);  // sum
Replicated reduce(const TensorRanks& ranks, const Partial& x);   // the same gradient
Sharded scatter(const TensorRanks& ranks, const Replicated& x,
                std::int64_t dimension);                               // gather
Replicated gather(const TensorRanks& ranks, const Sharded& x);         // own shard
Branched gather_branched(const TensorRanks& ranks, const Sharded& x);  // sum, own shard
Sharded reduce_scatter(const TensorRanks& ranks, const Partial& x,
                       std::int64_t dimension);  // gather
// From shards along one dimension to shards along `to`: an all-to-all, in the backward too.
Sharded exchange(const TensorRanks& ranks, const Sharded& x, std::int64_t to);

// branch() of several tensors, whose gradients travel as one message. For parameters that every
// rank holds and uses for its own part of the tokens, such as those of a norm on sequence shards:
// their gradients are whole and equal afterwards. Undefined tensors stay undefined.
std::vector<at::Tensor> branch_parameters(const TensorRanks& ranks,
                                          const std::vector<at::Tensor>& parameters);

}  // namespace trestle::tensor_parallel
