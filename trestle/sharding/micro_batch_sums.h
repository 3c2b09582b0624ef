#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace trestle::sharding {

// The gradients of this rank's pieces of a batch (ShardOptions::reproducible), added up in the order in which ranks are
// (comm/pairs.h): neighbours first, then neighbours of these. So that twice as many ranks with half the pieces each make
// the same additions.
//
// For each group of parameters it keeps the sums of 1, 2, 4 ... pieces that still wait for their neighbour.
class MicroBatchSums {
 public:
  MicroBatchSums(int pieces, std::size_t groups);  // of this rank, a power of two

  int done() const { return done_; }  // pieces of this step that are complete
  bool is_last() const { return done_ + 1 == pieces_; }

  // A piece's flat gradients of a group, which it keeps. Returns the sum of all where it is the last one, otherwise memory
  // for the next piece's, or nothing.
  at::Tensor add(std::size_t group, at::Tensor gradients);
  // Which of a group's parameters a piece used; returns which one any so far has.
  const std::vector<bool>& note_used(std::size_t group, const std::vector<bool>& used);
  void end_piece();
  void begin_anew();  // the step: what it has is let go

 private:
  struct Group {
    std::vector<std::pair<int, at::Tensor>> sums;  // of how many pieces
    std::vector<bool> used;
  };
  const int pieces_;
  int done_ = 0;
  std::vector<Group> groups_;
};

}  // namespace trestle::sharding
