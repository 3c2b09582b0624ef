#include "trestle/comm/threads/thread_collectives.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "trestle/comm/reduction.h"

namespace trestle::comm {
namespace {

struct Range {
  const char* begin;
  const char* end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const at::Tensor& tensor) {
  const char* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}

// Whether a rank's input is its shard of the all-gather's output.
bool is_own_shard(const Request& request, std::size_t rank) {
  return request.print.kind == Kind::AllGather &&
         range_of(request.input).begin ==
             range_of(request.output).begin + rank * request.input.nbytes();
}

// Whether an output overlaps another tensor of any rank. An in-place call does not count: its
// output is its input, or has the input as its own shard.
bool have_overlaps(const std::vector<Request>& requests) {
  for (std::size_t a = 0; a < requests.size(); ++a) {
    const Range written = range_of(requests[a].output);
    for (std::size_t b = 0; b < requests.size(); ++b) {
      const bool in_place =
          a == b && (requests[a].output.is_same(requests[a].input) || is_own_shard(requests[a], a));
      if (!in_place && written.meets(range_of(requests[b].input))) return true;
      if (a != b && written.meets(range_of(requests[b].output))) return true;
    }
  }
  return false;
}

void copy_bytes(const at::Tensor& to, std::int64_t at, const at::Tensor& from, std::int64_t begin,
                std::int64_t elements) {
  if (elements == 0) return;
  const auto size = static_cast<std::int64_t>(to.element_size());
  char* const target = static_cast<char*>(to.mutable_data_ptr()) + at * size;
  const char* const source = static_cast<const char*>(from.const_data_ptr()) + begin * size;
  if (target != source) std::memcpy(target, source, static_cast<std::size_t>(elements * size));
}

// Works in chunks that stay in a core's cache from the first sum to the last copy.
void thread_all_reduce(std::vector<Request>& requests) {
  constexpr std::int64_t chunk = 1 << 16;
  const std::int64_t elements = requests[0].output.numel();
  for (std::int64_t begin = 0; begin < elements; begin += chunk) {
    const std::int64_t count = std::min(chunk, elements - begin);
    std::vector<at::Tensor> sums;  // in place: all outputs are overwritten at the end
    for (const Request& request : requests) sums.push_back(request.output.narrow(0, begin, count));
    for_each_reduction_pair(sums.size(), [&](std::size_t a, std::size_t b) {
      reduce_into(sums[a], sums[b], requests[0].reduce);
    });
    for (std::size_t r = 1; r < requests.size(); ++r)
      copy_bytes(requests[r].output, begin, sums[0], 0, count);
  }
}

// Reduces the inputs to `sum` without changing them; `buffers` hold the intermediate sums.
void reduce_chunk(const at::Tensor& sum, std::vector<at::Tensor>& inputs,
                  std::vector<at::Tensor>& buffers, Reduce op) {
  if (inputs.size() == 1) copy_bytes(sum, 0, inputs[0], 0, sum.numel());
  std::vector<at::Tensor> sums = inputs;
  for_each_reduction_pair(inputs.size(), [&](std::size_t a, std::size_t b) {
    const at::Tensor to = a == 0 ? sum : buffers[a / 2].narrow(0, 0, sum.numel());
    reduce_to(to, sums[a], sums[b], op);
    sums[a] = to;
  });
}

void reduce_scatter(std::vector<Request>& requests) {
  constexpr std::int64_t chunk = 1 << 16;
  const std::int64_t elements = requests[0].output.numel();
  std::vector<at::Tensor> buffers(requests.size() / 2 + 1);
  for (std::size_t i = 1; 2 * i < requests.size(); ++i)
    buffers[i] = at::empty({std::min(chunk, elements)}, requests[0].output.options());
  for (std::size_t to = 0; to < requests.size(); ++to) {
    for (std::int64_t begin = 0; begin < elements; begin += chunk) {
      const std::int64_t count = std::min(chunk, elements - begin);
      std::vector<at::Tensor> inputs;
      for (const Request& from : requests)
        inputs.push_back(
            from.input.narrow(0, static_cast<std::int64_t>(to) * elements + begin, count));
      reduce_chunk(requests[to].output.narrow(0, begin, count), inputs, buffers,
                   requests[0].reduce);
    }
  }
}

void thread_all_gather(std::vector<Request>& requests) {
  for (Request& to : requests) {
    std::int64_t at = 0;
    for (const Request& from : requests) {
      copy_bytes(to.output, at, from.input, 0, from.input.numel());
      at += from.input.numel();
    }
  }
}

void thread_all_to_all(std::vector<Request>& requests) {
  std::vector<std::int64_t> read(requests.size(), 0);  // elements of each input that are copied
  for (std::size_t to = 0; to < requests.size(); ++to) {
    std::int64_t at = 0;
    for (std::size_t from = 0; from < requests.size(); ++from) {
      const std::int64_t count = requests[from].input_pieces[to];
      copy_bytes(requests[to].output, at, requests[from].input, read[from], count);
      at += count;
      read[from] += count;
    }
  }
}

void run(std::vector<Request>& requests) {
  switch (requests[0].print.kind) {
    case Kind::Broadcast: {
      const auto root = static_cast<std::size_t>(requests[0].peer);
      for (std::size_t r = 0; r < requests.size(); ++r) {
        if (r != root)
          copy_bytes(requests[r].output, 0, requests[root].input, 0, requests[r].output.numel());
      }
      return;
    }
    case Kind::AllReduce:
      return thread_all_reduce(requests);
    case Kind::ReduceScatter:
      return reduce_scatter(requests);
    case Kind::AllGather:
      return thread_all_gather(requests);
    case Kind::AllToAll:
      return thread_all_to_all(requests);
    case Kind::Barrier:
    case Kind::Send:
    case Kind::Receive:
      return;
  }
}

}  // namespace

void run_collective(std::vector<Request>& requests) {
  const at::NoGradGuard no_grad;
  // One rank's thread works on the tensors of all ranks. A watch over its own operators, such as a
  // checkpointed function's, must not take these for its own.
  const at::DisableRecordFunctionGuard unobserved;
  if (requests[0].print.kind == Kind::Barrier) return;
  if (!have_overlaps(requests)) return run(requests);
  // Works on copies of inputs and outputs, then copies the results to the outputs.
  std::vector<Request> apart = requests;
  for (Request& request : apart) {
    const bool in_place = request.output.is_same(request.input);
    request.input = request.input.clone();
    request.output = in_place ? request.input : at::empty_like(request.output);
  }
  run(apart);
  for (std::size_t r = 0; r < requests.size(); ++r)
    copy_bytes(requests[r].output, 0, apart[r].output, 0, requests[r].output.numel());
}

}  // namespace trestle::comm
