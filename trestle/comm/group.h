#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trestle/comm/rank_error.h"
#include "trestle/comm/work.h"

namespace trestle::comm {

enum class Reduce { Sum, Product, Min, Max };  // for bool: or, and, and, or

// Whether ranks compare what they are about to do (kind, order, shape, memory order, dtype) before they
// do it. It costs a small message each; without it ranks that differ end in a wrong number, a time-out
// or, with Gloo, a terminated process. Off is for callers that follow one plan on all ranks, which they
// have compared. Both ends of a message have the same setting. Ranks that are threads always compare.
enum class Check { On, Off };

// Some ranks that talk to each other. Every rank of the group calls the same collectives in the same
// order. A copy stands for the same group. Ranks are numbered within the group. What is written to
// counts as written to for autograd too, from the call on.
//
//   const trestle::comm::Group& group = world.group();
//   at::Tensor sum = torch::ones({4}) * group.rank();
//   group.all_reduce(sum).wait();
//
// Tensors may lie on the CPU, on virtual devices and on GPUs. They lie in one piece of memory, in any
// order of dimensions that leaves no gaps (channels_last does), and are not sparse: UsageError
// otherwise, as for sizes that do not fit, before anything is sent. Pieces of a tensor are pieces of
// its memory. Averages are the caller's own division.
//
// Reductions take the ranks in a fixed order, neighbours first, as ((0 + 1) + (2 + 3)) + 4, so that ranks
// that are threads and ranks that are processes give the same bits (NCCL takes its own). They know float64, float32, float16, bfloat16,
// int64, int32, int8, uint8 and bool; all other calls know every dtype.
//
// From several threads of a rank: messages may be sent and received from any; collectives must keep
// their order.
class Group {
 public:
  class Impl;

  Group() = default;  // no group: only valid() and assignment
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  bool valid() const { return impl_ != nullptr; }
  int rank() const;
  int size() const;
  // Numbers in the world: ranks()[rank()] is this rank's.
  const std::vector<int>& ranks() const;
  std::chrono::milliseconds deadline() const;
  // The same ranks and connections with another setting. Messages without a check go to the engine in
  // the calling thread, and take little more time than its own.
  Group with_check(Check check) const;

  // Into `tensor`, of one shape and dtype on all ranks.
  Work broadcast(at::Tensor tensor, int from) const;
  Work all_reduce(at::Tensor tensor, Reduce op = Reduce::Sum) const;
  // `input` has size() times the elements of `output`: rank r gets the r-th piece of the sum.
  Work reduce_scatter(at::Tensor output, at::Tensor input, Reduce op = Reduce::Sum) const;
  // `output` has size() times the elements of `input`, in the order of ranks.
  Work all_gather(at::Tensor output, at::Tensor input) const;
  // Inputs that differ along dimension 0, also 0; returns those of all ranks in order. Waits.
  std::vector<at::Tensor> all_gather_uneven(const at::Tensor& input) const;
  // Rows of dimension 0: input_rows[r] of them go to rank r, output_rows[r] come from it; empty = the
  // same number each. Both contiguous in the usual order.
  Work all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_rows = {},
                  std::vector<std::int64_t> input_rows = {}) const;
  void barrier() const;

  // One tensor from rank to rank: shape and dtype must be the same on both ends. Messages between
  // two ranks with one tag (0 to 2^20) arrive in order; those with different tags in any. A send may
  // wait for its receive: post receives first, wait for sends last. Both are kept until they are done,
  // also if their Work is let go.
  Work send(at::Tensor tensor, int to, int tag = 0) const;
  Work receive(at::Tensor tensor, int from, int tag = 0) const;

  // As World's (world.h), for code that has a group only: ends the communication of all ranks with
  // this reason; says what this rank did last; says what a rank of the group said.
  void fail(const std::string& reason) const;
  void say_status(std::string status) const;
  std::string status_of(int rank) const;

  // Bytes: a string, JSON, whatever. All ranks get rank `from`'s. Waits.
  std::string broadcast_bytes(std::string bytes, int from) const;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace trestle::comm
