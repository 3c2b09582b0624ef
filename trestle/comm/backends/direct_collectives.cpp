#include "trestle/comm/backends/direct_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>

#include "trestle/comm/backends/in_flight.h"
#include "trestle/comm/message_tags.h"
#include "trestle/comm/reduction.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int64_t chunk_bytes = 1 << 20;
constexpr std::int64_t most_chunks = 64;  // of one tensor between two ranks
// Chunks that may arrive before the first is added: the adding thread may have to wait for a core.
constexpr std::int64_t most_buffers = 4;

int size_of(const BackendContext& context) { return static_cast<int>(context.ranks.size()); }

// Calls function(rank) for all other ranks. Each rank begins with its successor, so that the ranks
// do not all send to one rank first.
template <class Function>
void for_others(const BackendContext& context, const Function& function) {
  const int size = size_of(context);
  for (int distance = 1; distance < size; ++distance) function((context.rank + distance) % size);
}

// The messages of one collective, which are in flight together. Messages between two ranks with one
// tag arrive in order.
class Messages {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit Messages(const BackendContext& context)
      : context_(context), end_(steady_clock::now() + context.deadline) {}

  void send(const at::Tensor& tensor, int to, int tag) {
    std::vector<at::Tensor> tensors = {tensor};
    if (tensor.numel() > 0) works_.push_back(context_.backend.send(tensors, to, tag));
  }
  void receive(const at::Tensor& tensor, int from, int tag) {
    if (tensor.numel() > 0) works_.push_back(receive_one(tensor, from, tag));
  }
  WorkPtr receive_one(const at::Tensor& tensor, int from, int tag) {
    std::vector<at::Tensor> tensors = {tensor};
    return context_.backend.recv(tensors, from, tag);
  }
  void wait(c10d::Work& work) {
    const auto left = std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now());
    context_.in_flight.wait(work, std::max(left, milliseconds(1)));
  }
  void wait_all() {
    for (const WorkPtr& work : works_) wait(*work);
    works_.clear();
  }

 private:
  const BackendContext& context_;
  const steady_clock::time_point end_;
  std::deque<WorkPtr> works_;
};

// Splits a flat tensor into chunks.
struct Chunks {
  Chunks(std::int64_t count, std::int64_t element_size)
      : count(count),
        length(std::max(chunk_bytes / element_size, (count + most_chunks - 1) / most_chunks)) {}

  std::int64_t number() const { return (count + length - 1) / length; }
  at::Tensor chunk(const at::Tensor& tensor, std::int64_t i) const {
    return tensor.narrow(0, i * length, std::min(length, count - i * length));
  }

  std::int64_t count, length;
};

// The other ranks' inputs to the shard that this rank reduces. A few chunks of each rank are in
// flight at a time: one is added while the next ones arrive.
class Incoming {
 public:
  Incoming(const BackendContext& context, Messages& messages, const at::Tensor& like)
      : context_(context), messages_(messages), chunks_(like.numel(), like.element_size()) {
    const std::int64_t length = std::min(chunks_.length, chunks_.count);
    count_ = std::min(most_buffers, chunks_.number());
    buffers_ = at::empty({count_, size_of(context), length}, like.options());
    works_.resize(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) post(i);
  }

  // out = the reduction of all ranks' inputs in the order of reduction.h; `own` is this rank's
  // input. Calls done(chunk of out) for each chunk.
  void reduce(const at::Tensor& out, const at::Tensor& own, Reduce op,
              const std::function<void(const at::Tensor&)>& done) {
    const int size = size_of(context_);
    for (std::int64_t i = 0; i < chunks_.number(); ++i) {
      for (const auto& work : works_[static_cast<std::size_t>(i % count_)]) messages_.wait(*work);
      const at::Tensor to = chunks_.chunk(out, i);
      const auto input = [&](int rank) {
        return rank == context_.rank ? chunks_.chunk(own, i) : buffer(i, rank);
      };
      std::vector<at::Tensor> sums;
      for (int rank = 0; rank < size; ++rank) sums.push_back(input(rank));
      // Intermediate sums go into the receive buffers. This rank's own input is not overwritten
      // before the last sum.
      const auto last = std::bit_floor(static_cast<std::size_t>(size - 1));
      std::size_t untouched = static_cast<std::size_t>(context_.rank);
      for_each_reduction_pair(sums.size(), [&](std::size_t a, std::size_t b) {
        const at::Tensor next = b == last && a == 0 ? to : sums[a == untouched ? b : a];
        reduce_to(next, sums[a], sums[b], op);
        if (a == untouched) untouched = sums.size();
        sums[a] = next;
      });
      if (i + count_ < chunks_.number()) post(i + count_);
      done(to);
    }
  }

 private:
  at::Tensor buffer(std::int64_t i, int rank) const {
    const at::Tensor whole = buffers_[i % count_][rank];
    return whole.narrow(0, 0, std::min(chunks_.length, chunks_.count - i * chunks_.length));
  }
  void post(std::int64_t i) {
    auto& works = works_[static_cast<std::size_t>(i % count_)];
    works.clear();
    for_others(context_, [&](int rank) {
      works.push_back(messages_.receive_one(buffer(i, rank), rank, reduce_tag));
    });
  }

  const BackendContext& context_;
  Messages& messages_;
  const Chunks chunks_;
  std::int64_t count_ = 0;  // of buffers for each rank
  at::Tensor buffers_;
  std::vector<std::vector<Messages::WorkPtr>> works_;
};

void send_in_chunks(Messages& messages, const at::Tensor& tensor, int to, int tag) {
  const Chunks chunks(tensor.numel(), tensor.element_size());
  for (std::int64_t i = 0; i < chunks.number(); ++i)
    messages.send(chunks.chunk(tensor, i), to, tag);
}

void receive_in_chunks(Messages& messages, const at::Tensor& tensor, int from, int tag) {
  const Chunks chunks(tensor.numel(), tensor.element_size());
  for (std::int64_t i = 0; i < chunks.number(); ++i)
    messages.receive(chunks.chunk(tensor, i), from, tag);
}

}  // namespace

void direct_all_gather(const BackendContext& context, const at::Tensor& output,
                       const at::Tensor& input) {
  const std::int64_t count = input.numel();
  const auto place = [&](int rank) { return output.narrow(0, rank * count, count); };
  const at::Tensor own = place(context.rank);
  const bool in_place = own.const_data_ptr() == input.const_data_ptr();
  // An input elsewhere in the output would be overwritten before it is sent.
  const at::Tensor sent = !in_place && share_memory(output, input) ? input.clone() : input;
  Messages messages(context);
  for_others(context, [&](int rank) { messages.receive(place(rank), rank, gather_tag); });
  for_others(context, [&](int rank) { messages.send(sent, rank, gather_tag); });
  if (!in_place) own.copy_(sent);
  messages.wait_all();
}

void direct_reduce_scatter(const BackendContext& context, const at::Tensor& output,
                           const at::Tensor& input, Reduce op) {
  const std::int64_t count = output.numel();
  const at::Tensor own = input.narrow(0, context.rank * count, count);
  if (size_of(context) == 1) {
    if (own.const_data_ptr() != output.const_data_ptr()) output.copy_(own);
    return;
  }
  const bool apart =
      own.const_data_ptr() == output.const_data_ptr() || !share_memory(output, input);
  const at::Tensor sum = apart ? output : at::empty_like(output);
  Messages messages(context);
  Incoming incoming(context, messages, own);
  for_others(context, [&](int rank) {
    send_in_chunks(messages, input.narrow(0, rank * count, count), rank, reduce_tag);
  });
  incoming.reduce(sum, own, op, [](const at::Tensor&) {});
  messages.wait_all();
  if (!apart) output.copy_(sum);
}

// Each rank reduces one shard and sends the sum to the other ranks, which receive it in place of
// their inputs. A sum cannot arrive before these inputs were sent, because it is computed from
// them.
void direct_all_reduce(const BackendContext& context, const at::Tensor& tensor, Reduce op) {
  const int size = size_of(context);
  if (size == 1) return;
  const std::int64_t count = tensor.numel(), length = (count + size - 1) / size;
  const auto shard_of = [&](int rank) {
    const std::int64_t begin = std::min(rank * length, count);
    return tensor.narrow(0, begin, std::min(length, count - begin));
  };
  const at::Tensor own = shard_of(context.rank);
  Messages messages(context);
  Incoming incoming(context, messages, own);
  for_others(context,
             [&](int rank) { receive_in_chunks(messages, shard_of(rank), rank, gather_tag); });
  for_others(context,
             [&](int rank) { send_in_chunks(messages, shard_of(rank), rank, reduce_tag); });
  incoming.reduce(own, own, op, [&](const at::Tensor& sum) {
    for_others(context, [&](int rank) { messages.send(sum, rank, gather_tag); });
  });
  messages.wait_all();
}

}  // namespace trestle::comm
