#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "trestle/comm/work.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

// Collectives over tensor ranks along any dimension, without gradients. Shards are even_range()s
// and may differ by one index: they travel with a padded index. Inside of tensor_parallel. Not
// installed.
namespace trestle::tensor_parallel {

// A collective in flight.
class Later {
 public:
  Later(const TensorRanks& ranks, const char* verb, const LoggedMessage& message, comm::Work work,
        std::function<at::Tensor()> result)
      : ranks_(ranks),
        verb_(verb),
        message_(message),
        work_(std::move(work)),
        result_(std::move(result)) {}
  // One rank alone: nothing is sent.
  Later(const TensorRanks& alone, at::Tensor x)
      : ranks_(alone), verb_(""), result_([x = std::move(x)] { return x; }) {}
  // Waits. An error says which layer waited, and what for.
  at::Tensor get();

 private:
  TensorRanks ranks_;
  const char* verb_;
  LoggedMessage message_;
  comm::Work work_;
  std::function<at::Tensor()> result_;
};

// The sum of all ranks' x. sum_in_place() writes to x, which nothing else may use.
Later sum(const TensorRanks& ranks, const at::Tensor& x);
Later sum_in_place(const TensorRanks& ranks, const at::Tensor& x);
Later largest_in_place(const TensorRanks& ranks, const at::Tensor& x);
// All ranks' shards, joined along `dimension`, which has `whole` indices.
Later gather(const TensorRanks& ranks, const at::Tensor& shard, std::int64_t dimension,
             std::int64_t whole);
// This rank's shard of the sum.
Later sum_and_scatter(const TensorRanks& ranks, const at::Tensor& x, std::int64_t dimension);
// A copy of this rank's shard of x.
at::Tensor own_shard(const TensorRanks& ranks, const at::Tensor& x, std::int64_t dimension);
// From shards along `from`, with `whole` indices, to shards along `to`.
Later exchange_shards(const TensorRanks& ranks, const at::Tensor& x, std::int64_t from,
                      std::int64_t whole, std::int64_t to);

}  // namespace trestle::tensor_parallel
