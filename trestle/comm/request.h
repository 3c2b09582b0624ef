#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/fingerprint.h"

namespace trestle::comm {

// One checked call of a rank, in the form that connections execute. The tensors are flat views of
// the caller's memory: on the GPU for GPU tensors, else on the CPU. An in-place collective has one
// tensor as both. Data that is moved and not reduced is viewed as bytes, so that every dtype works.
struct Request {
  Fingerprint print;
  at::Tensor input = {}, output = {};
  Reduce reduce = Reduce::Sum;  // the operation to execute; for bool it differs from print.reduce
  int peer = -1;                // group rank: root of a broadcast, or the other end of a message
  int tag = 0;
  // all_to_all: the number of elements of input and output for each rank.
  std::vector<std::int64_t> input_pieces = {}, output_pieces = {};
};

// Each throws UsageError for a tensor that cannot be sent (undefined, sparse, with gaps in its
// memory, on an unsupported device), and for sizes, dtypes and ranks that do not match. `size` is
// the group's size, `rank` this rank's number in the group.
Request broadcast_request(const at::Tensor& tensor, int from, int size);
Request all_reduce_request(const at::Tensor& tensor, Reduce op);
Request reduce_scatter_request(const at::Tensor& output, const at::Tensor& input, Reduce op,
                               int size);
Request all_gather_request(const at::Tensor& output, const at::Tensor& input, int size);
Request all_to_all_request(const at::Tensor& output, const at::Tensor& input,
                           std::vector<std::int64_t> output_rows,
                           std::vector<std::int64_t> input_rows, int size);
// Only the checks, for an operation made of several collectives that splits `input` along dimension
// 0.
void check_rows(const char* call, const at::Tensor& input);
Request barrier_request();
Request message_request(Kind kind, const at::Tensor& tensor, int peer, int tag, int rank, int size);

inline constexpr int most_tag = 1 << 20;

}  // namespace trestle::comm
