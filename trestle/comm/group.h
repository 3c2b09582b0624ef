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

// Whether ranks compare what they are about to do (kind, order, shape, dtype) before they do it. It
// costs one small message each; without it ranks that differ end in a wrong number, a time-out or a
// terminated process. Off is for callers that follow one plan on all ranks, which they have compared.
enum class Check { On, Off };

// Some ranks that talk to each other. Every rank of the group calls the same collectives in the same
// order. A copy stands for the same group. Ranks are numbered within the group.
//
//   trestle::comm::Group group = world.group();
//   at::Tensor sum = torch::ones({4}) * group.rank();
//   group.all_reduce(sum).wait();
//
// Tensors may lie on the CPU, on virtual devices and on GPUs, may not be sparse, and must be
// contiguous in memory (in any dimension order that leaves no gaps, such as channels_last): UsageError otherwise, as for sizes that do not fit.
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
  // The same ranks and connections with another setting.
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
  // Rows of dimension 0: input_rows[r] of them go to rank r, output_rows[r] come from it; both empty =
  // even.
  Work all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_rows = {},
                  std::vector<std::int64_t> input_rows = {}) const;
  void barrier() const;

  // One tensor from rank to rank: shape and dtype must be the same on both ends. Messages between
  // two ranks with one tag (0 to 2^20) arrive in order; those with different tags in any. A send may
  // wait for its receive: post receives first.
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
