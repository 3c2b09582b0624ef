#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/fingerprint.h"

namespace trestle::comm {

// One call of a rank, checked, as the engines carry it out. The tensors are flat views of the
// caller's memory, on the CPU for all that is not a GPU's; where a collective works in place both
// are the same one. What only moves is moved as bytes, so that every dtype can.
struct Request {
  Fingerprint print;
  at::Tensor input = {}, output = {};
  Reduce reduce = Reduce::Sum;  // what to do, which for bool is not what print.reduce says
  int peer = -1;                // rank of the group: root of a broadcast, other end of a message
  int tag = 0;
  // all_to_all: elements of input and output for each rank.
  std::vector<std::int64_t> input_pieces = {}, output_pieces = {};
};

// Each throws UsageError for a tensor that cannot be sent (not there, sparse, with gaps in its
// memory, on a device that does not exist) and for sizes, dtypes and ranks that do not fit together.
// `size` is that of the group, `rank` this rank's number in it.
Request broadcast_request(const at::Tensor& tensor, int from, int size);
Request all_reduce_request(const at::Tensor& tensor, Reduce op);
Request reduce_scatter_request(const at::Tensor& output, const at::Tensor& input, Reduce op,
                               int size);
Request all_gather_request(const at::Tensor& output, const at::Tensor& input, int size);
Request all_to_all_request(const at::Tensor& output, const at::Tensor& input,
                           std::vector<std::int64_t> output_rows,
                           std::vector<std::int64_t> input_rows, int size);
// Nothing but these checks, for what is made of several collectives: of a tensor that is cut along its
// dimension 0.
void check_rows(const char* call, const at::Tensor& input);
Request barrier_request();
Request message_request(Kind kind, const at::Tensor& tensor, int peer, int tag, int rank, int size);

inline constexpr int most_tag = 1 << 20;

}  // namespace trestle::comm
