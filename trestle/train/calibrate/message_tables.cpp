#include "trestle/train/calibrate/message_tables.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <functional>

#include "trestle/base/stopwatch.h"
#include "trestle/comm/gather.h"
#include "trestle/device/stream_event.h"

namespace trestle::train {

namespace {

using plan::Exchange;

struct Rounds {
  int count = 5;    // samples
  int repeats = 1;  // exchanges in each
};

// All ranks repeat an exchange equally often, so the number depends on the size alone.
Rounds rounds_of(Bytes bytes, bool quick) {
  constexpr Bytes small = Bytes{64} << 10, medium = Bytes{4} << 20;
  if (bytes <= small) return {.count = quick ? 8 : 20, .repeats = 4};
  if (bytes <= medium) return {.count = quick ? 5 : 12};
  return {.count = quick ? 3 : 7};
}

std::function<void()> exchange(const comm::Group& group, Exchange kind, at::Device device,
                               Bytes bytes) {
  const std::int64_t ranks = group.size();
  const auto per_rank = (bytes / static_cast<Bytes>(sizeof(float)) + ranks - 1) / ranks;
  const auto numbers = [&](std::int64_t count) {
    return at::zeros({count}, at::device(device).dtype(at::kFloat));
  };
  const at::Tensor whole = numbers(per_rank * ranks), shard = numbers(per_rank);
  switch (kind) {
    case Exchange::AllReduce:
      break;
    case Exchange::AllGather:
      return [=] { group.all_gather(whole, shard).wait(); };
    case Exchange::ReduceScatter:
      return [=] { group.reduce_scatter(shard, whole).wait(); };
    case Exchange::Send:
      return [=, answer = numbers(per_rank * ranks)] {
        const int other = 1 - group.rank();
        comm::Work received = group.receive(answer, other);
        if (group.rank() == 1) received.wait();
        comm::Work sent = group.send(whole, other);
        if (group.rank() == 0) received.wait();
        sent.wait();
      };
  }
  return [=] { group.all_reduce(whole).wait(); };
}

}  // namespace

plan::MessageTable time_messages_by_size(const comm::Group& checked, Exchange kind,
                                         at::Device device, const CalibrationDepth& depth) {
  // As a training sends most of its messages.
  const comm::Group group = checked.with_check(comm::Check::Off);
  plan::MessageTable table{.kind = kind,
                           .ranks = group.size(),
                           .origin = plan::Origin::Measured,
                           .from = kind == Exchange::Send ? "half of a message and its answer"
                                                          : "rounds of the slowest rank"};
  const double ways = kind == Exchange::Send ? 2 : 1;
  for (const Bytes bytes : depth.messages) {
    const std::function<void()> one = exchange(group, kind, device, bytes);
    const Rounds rounds = rounds_of(bytes, depth.quick);
    one();
    std::vector<double> own;
    checked.barrier();
    for (int round = 0; round < rounds.count; ++round) {
      const Stopwatch watch;
      for (int i = 0; i < rounds.repeats; ++i) one();
      device::synchronize(device);
      own.push_back(std::max(watch.seconds(), 1e-9) / rounds.repeats / ways);
    }
    std::vector<double> slowest = own;
    for (const auto& of_rank : comm::all_gather_values(checked, own))
      for (std::size_t i = 0; i < slowest.size(); ++i)
        slowest[i] = std::max(slowest[i], of_rank.at(i));
    const Timed timed = median_of(std::move(slowest));
    table.bytes.push_back(static_cast<double>(bytes));
    table.seconds.push_back(timed.seconds);
    table.spread.push_back(timed.spread);
  }
  return table;
}

}  // namespace trestle::train
