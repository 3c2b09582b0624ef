#include "trestle/comm/direct_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>

#include "trestle/comm/in_flight.h"
#include "trestle/comm/message_tags.h"
#include "trestle/comm/pairs.h"
#include "trestle/comm/thread_collectives.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int64_t piece_bytes = 1 << 20;
constexpr std::int64_t most_pieces = 64;  // of one tensor between two ranks
// Pieces that may arrive before the first of them is added: who adds may have to wait for a core.
constexpr std::int64_t most_rooms = 4;

int size_of(const Engine& engine) { return static_cast<int>(engine.ranks.size()); }

// Calls function(rank) for all other ranks, each rank beginning with the one behind it, so that not all send to one.
template <class Function>
void for_others(const Engine& engine, const Function& function) {
  const int size = size_of(engine);
  for (int distance = 1; distance < size; ++distance) function((engine.rank + distance) % size);
}

// Messages of one collective, which are under way together. Between two ranks they arrive in order for each tag.
class Messages {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit Messages(const Engine& engine)
      : engine_(engine), end_(steady_clock::now() + engine.deadline) {}

  void send(const at::Tensor& tensor, int to, int tag) {
    std::vector<at::Tensor> tensors = {tensor};
    if (tensor.numel() > 0) works_.push_back(engine_.backend.send(tensors, to, tag));
  }
  void receive(const at::Tensor& tensor, int from, int tag) {
    if (tensor.numel() > 0) works_.push_back(receive_one(tensor, from, tag));
  }
  WorkPtr receive_one(const at::Tensor& tensor, int from, int tag) {
    std::vector<at::Tensor> tensors = {tensor};
    return engine_.backend.recv(tensors, from, tag);
  }
  void wait(c10d::Work& work) {
    const auto left = std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now());
    engine_.in_flight.wait(work, std::max(left, milliseconds(1)));
  }
  void wait_all() {
    for (const WorkPtr& work : works_) wait(*work);
    works_.clear();
  }

 private:
  const Engine& engine_;
  const steady_clock::time_point end_;
  std::deque<WorkPtr> works_;
};

// Elements of a tensor in pieces.
struct Pieces {
  Pieces(std::int64_t count, std::int64_t element_size)
      : count(count),
        length(std::max(piece_bytes / element_size, (count + most_pieces - 1) / most_pieces)) {}

  std::int64_t number() const { return (count + length - 1) / length; }
  at::Tensor of(const at::Tensor& tensor, std::int64_t i) const {
    return tensor.narrow(0, i * length, std::min(length, count - i * length));
  }

  std::int64_t count, length;
};

// The others' parts of what this rank reduces, a few pieces of each at a time: one is added while the next ones arrive.
class Incoming {
 public:
  Incoming(const Engine& engine, Messages& messages, const at::Tensor& like)
      : engine_(engine), messages_(messages), pieces_(like.numel(), like.element_size()) {
    const std::int64_t length = std::min(pieces_.length, pieces_.count);
    count_ = std::min(most_rooms, pieces_.number());
    rooms_ = at::empty({count_, size_of(engine), length}, like.options());
    works_.resize(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) post(i);
  }

  // out = the sum, in the order of pairs.h, of everybody's; `own` is this rank's. Calls done(piece of out) for each piece.
  void reduce(const at::Tensor& out, const at::Tensor& own, Reduce op,
              const std::function<void(const at::Tensor&)>& done) {
    const int size = size_of(engine_);
    for (std::int64_t i = 0; i < pieces_.number(); ++i) {
      for (const auto& work : works_[static_cast<std::size_t>(i % count_)]) messages_.wait(*work);
      const at::Tensor to = pieces_.of(out, i);
      const auto part = [&](int rank) {
        return rank == engine_.rank ? pieces_.of(own, i) : room(i, rank);
      };
      std::vector<at::Tensor> sums;
      for (int rank = 0; rank < size; ++rank) sums.push_back(part(rank));
      // Into the rooms, which are free afterwards: what is this rank's own stays as it is until the end.
      const auto last = std::bit_floor(static_cast<std::size_t>(size - 1));
      std::size_t own = static_cast<std::size_t>(engine_.rank);
      for_pairs(sums.size(), [&](std::size_t a, std::size_t b) {
        const at::Tensor next = b == last && a == 0 ? to : sums[a == own ? b : a];
        reduce_to(next, sums[a], sums[b], op);
        if (a == own) own = sums.size();
        sums[a] = next;
      });
      if (i + count_ < pieces_.number()) post(i + count_);
      done(to);
    }
  }

 private:
  at::Tensor room(std::int64_t i, int rank) const {
    const at::Tensor whole = rooms_[i % count_][rank];
    return whole.narrow(0, 0, std::min(pieces_.length, pieces_.count - i * pieces_.length));
  }
  void post(std::int64_t i) {
    auto& works = works_[static_cast<std::size_t>(i % count_)];
    works.clear();
    for_others(engine_, [&](int rank) {
      works.push_back(messages_.receive_one(room(i, rank), rank, part_tag));
    });
  }

  const Engine& engine_;
  Messages& messages_;
  const Pieces pieces_;
  std::int64_t count_ = 0;  // of rooms for each rank
  at::Tensor rooms_;
  std::vector<std::vector<Messages::WorkPtr>> works_;
};

void send_in_pieces(Messages& messages, const at::Tensor& tensor, int to, int tag) {
  const Pieces pieces(tensor.numel(), tensor.element_size());
  for (std::int64_t i = 0; i < pieces.number(); ++i) messages.send(pieces.of(tensor, i), to, tag);
}

void receive_in_pieces(Messages& messages, const at::Tensor& tensor, int from, int tag) {
  const Pieces pieces(tensor.numel(), tensor.element_size());
  for (std::int64_t i = 0; i < pieces.number(); ++i)
    messages.receive(pieces.of(tensor, i), from, tag);
}

}  // namespace

void direct_all_gather(const Engine& engine, const at::Tensor& output, const at::Tensor& input) {
  const std::int64_t count = input.numel();
  const auto place = [&](int rank) { return output.narrow(0, rank * count, count); };
  const at::Tensor own = place(engine.rank);
  const bool in_place = own.const_data_ptr() == input.const_data_ptr();
  // Elsewhere in the output it would be written over before it is sent.
  const at::Tensor sent = !in_place && share_memory(output, input) ? input.clone() : input;
  Messages messages(engine);
  for_others(engine, [&](int rank) { messages.receive(place(rank), rank, whole_tag); });
  for_others(engine, [&](int rank) { messages.send(sent, rank, whole_tag); });
  if (!in_place) own.copy_(sent);
  messages.wait_all();
}

void direct_reduce_scatter(const Engine& engine, const at::Tensor& output, const at::Tensor& input,
                           Reduce op) {
  const std::int64_t count = output.numel();
  const at::Tensor own = input.narrow(0, engine.rank * count, count);
  if (size_of(engine) == 1) {
    if (own.const_data_ptr() != output.const_data_ptr()) output.copy_(own);
    return;
  }
  const bool apart =
      own.const_data_ptr() == output.const_data_ptr() || !share_memory(output, input);
  const at::Tensor sum = apart ? output : at::empty_like(output);
  Messages messages(engine);
  Incoming incoming(engine, messages, own);
  for_others(engine, [&](int rank) {
    send_in_pieces(messages, input.narrow(0, rank * count, count), rank, part_tag);
  });
  incoming.reduce(sum, own, op, [](const at::Tensor&) {});
  messages.wait_all();
  if (!apart) output.copy_(sum);
}

// Each rank reduces a part and sends it to the others, who receive it where their own numbers were: a sum cannot arrive
// there before these have been sent, since it is made of them.
void direct_all_reduce(const Engine& engine, const at::Tensor& tensor, Reduce op) {
  const int size = size_of(engine);
  if (size == 1) return;
  const std::int64_t count = tensor.numel(), part = (count + size - 1) / size;
  const auto part_of = [&](int rank) {
    const std::int64_t begin = std::min(rank * part, count);
    return tensor.narrow(0, begin, std::min(part, count - begin));
  };
  const at::Tensor own = part_of(engine.rank);
  Messages messages(engine);
  Incoming incoming(engine, messages, own);
  for_others(engine,
             [&](int rank) { receive_in_pieces(messages, part_of(rank), rank, whole_tag); });
  for_others(engine, [&](int rank) { send_in_pieces(messages, part_of(rank), rank, part_tag); });
  incoming.reduce(own, own, op, [&](const at::Tensor& sum) {
    for_others(engine, [&](int rank) { messages.send(sum, rank, whole_tag); });
  });
  messages.wait_all();
}

}  // namespace trestle::comm
