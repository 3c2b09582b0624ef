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

// Whether ranks compare their calls (kind, order, shape, memory order, dtype) before they execute
// them. It costs a small message each. Without it, ranks with different calls get wrong numbers, a
// time-out or, with Gloo, a terminated process. Off is for callers that follow one plan, which they
// have compared already. Both ends of a message need the same setting. Ranks that are threads
// always compare.
enum class Check { On, Off };

// Ranks that communicate with each other, as PyTorch's ProcessGroup. Every rank of the group calls
// the same collectives in the same order. Ranks are numbered within the group. Copies share one
// group. For autograd an output counts as modified in place from the call on.
//
//   const trestle::comm::Group& group = world.group();
//   at::Tensor sum = torch::ones({4}) * group.rank();
//   group.all_reduce(sum).wait();
//
// Tensors may be on the CPU, on virtual devices or on GPUs. They must be strided and dense, in any
// order of dimensions (channels_last is fine). Otherwise, and for sizes that do not match, a call
// throws UsageError before anything is sent. Shards of a tensor are consecutive ranges of its
// memory. For an average, the caller divides the sum.
//
// Reductions take the ranks in a fixed order, neighbours first, as ((0 + 1) + (2 + 3)) + 4, so that
// ranks that are threads and ranks that are processes give the same bits (NCCL uses its own order).
// They support float64, float32, float16, bfloat16, int64, int32, int8, uint8 and bool; all other
// calls support every dtype.
//
// Any thread of a rank may send and receive messages. Collectives of several threads must keep one
// order.
class Group {
 public:
  class Impl;

  Group() = default;  // no group: only valid() and assignment are allowed
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  bool valid() const { return impl_ != nullptr; }
  int rank() const;
  int size() const;
  // The group's ranks by their numbers in the world; ranks()[rank()] is this rank's.
  const std::vector<int>& ranks() const;
  std::chrono::milliseconds deadline() const;
  // The same group and connections with another setting. Messages without a check go to the backend
  // in the calling thread, with little overhead.
  Group with_check(Check check) const;

  // Overwrites `tensor` with rank `from`'s; shape and dtype must be the same on all ranks.
  Work broadcast(at::Tensor tensor, int from) const;
  Work all_reduce(at::Tensor tensor, Reduce op = Reduce::Sum) const;
  // `input` has size() times the elements of `output`; rank r gets the r-th shard of the sum.
  Work reduce_scatter(at::Tensor output, at::Tensor input, Reduce op = Reduce::Sum) const;
  // `output` has size() times the elements of `input`, in the order of ranks.
  Work all_gather(at::Tensor output, at::Tensor input) const;
  // Gathers inputs whose size along dimension 0 may differ, or be 0. Returns all ranks' inputs in
  // the order of ranks. Waits.
  std::vector<at::Tensor> all_gather_uneven(const at::Tensor& input) const;
  // Exchanges rows of dimension 0: input_rows[r] go to rank r, output_rows[r] come from rank r;
  // empty = an equal number for each. Both tensors must be contiguous.
  Work all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_rows = {},
                  std::vector<std::int64_t> input_rows = {}) const;
  void barrier() const;

  // Sends one tensor to another rank; shape and dtype must be the same on both ends. Messages
  // between two ranks with one tag (0 to 2^20) arrive in order; messages with different tags in any
  // order. A send may wait for its receive: post receives first, wait for sends last. Both continue
  // if their Work is destroyed.
  Work send(at::Tensor tensor, int to, int tag = 0) const;
  Work receive(at::Tensor tensor, int from, int tag = 0) const;

  // World::fail(), report_status() and status_of() (world.h), for code that has only a group.
  // status_of() takes a rank of the group.
  void fail(const std::string& reason) const;
  void report_status(std::string status) const;
  std::string status_of(int rank) const;

  // Broadcasts and gathers bytes of any kind. Both wait. all_gather_bytes() returns the bytes of
  // all ranks, in the order of ranks; gather.h has typed versions.
  std::string broadcast_bytes(std::string bytes, int from) const;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace trestle::comm
