#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace trestle::sharding {

// Adds up the gradients of this rank's micro-batches (ShardOptions::reproducible) in a binary tree,
// neighbours first, as comm/pairs.h adds up ranks. So twice the ranks with half the micro-batches
// each perform the same additions.
//
// For each flat group it holds the sums of 1, 2, 4 ... micro-batches that wait for their neighbour.
class MicroBatchSums {
 public:
  MicroBatchSums(int micro_batches, std::size_t groups);  // of this rank; a power of two

  int done() const { return done_; }  // micro-batches of this step that are complete
  bool is_last() const { return done_ + 1 == micro_batches_; }

  // Takes a group's flat gradients of one micro-batch. Returns the sum of all after the last one;
  // before, it returns memory for the next micro-batch's gradients, or an undefined tensor.
  at::Tensor add(std::size_t group, at::Tensor gradients);
  // Takes which of a group's parameters a micro-batch used. Returns which ones any micro-batch so
  // far used.
  const std::vector<bool>& note_used(std::size_t group, const std::vector<bool>& used);
  void end_micro_batch();
  void restart();  // frees the sums of this step

 private:
  struct GroupSums {
    std::vector<std::pair<int, at::Tensor>> sums;  // (number of micro-batches, their sum)
    std::vector<bool> used;
  };
  const int micro_batches_;
  int done_ = 0;
  std::vector<GroupSums> groups_;
};

}  // namespace trestle::sharding
