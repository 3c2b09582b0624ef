#include "trestle/pipeline/execute/rank_timeline.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/pipeline/transport/message_tags.h"

namespace trestle::pipeline {
namespace {

constexpr int clock_rounds = 5;

// Rank 0's clock minus this rank's.
double clock_offset(const comm::Group& group, const std::function<double()>& now) {
  at::Tensor time = at::zeros({1}, at::kDouble);
  double offset = 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    double fastest = std::numeric_limits<double>::infinity();
    for (int round = 0; round < clock_rounds; ++round) {
      if (group.rank() == 0) {
        group.receive(time, rank, clock_tag).wait();
        time.fill_(now());
        group.send(time, rank, clock_tag).wait();
      } else if (group.rank() == rank) {
        const double sent = now();
        group.send(time, 0, clock_tag).wait();
        group.receive(time, 0, clock_tag).wait();
        const double received = now();
        if (received - sent >= fastest) continue;
        fastest = received - sent;
        offset = time.item<double>() - (sent + received) / 2;
      }
    }
  }
  return offset;
}

}  // namespace

schedule::Timeline gather_timeline(const comm::Group& group, schedule::Timeline own, double begin,
                                   const std::function<double()>& now) {
  const comm::Group plain = group.with_check(comm::Check::Off);
  begin += clock_offset(plain, now);
  const auto all =
      comm::with_purpose([] { return "while the ranks gathered the times of the step"; },
                         [&] {
                           return comm::all_gather_values(
                               plain, std::tuple(begin, own.events, own.memory, own.peak_bytes,
                                                 own.tensor_messages, own.whole_layers));
                         });
  double first = begin;
  for (const auto& received : all) first = std::min(first, std::get<0>(received));

  schedule::Timeline result = std::move(own);
  result.events.clear();
  result.memory.clear();
  result.tensor_messages.clear();
  result.whole_layers.clear();
  result.peak_bytes.assign(static_cast<std::size_t>(result.rank_count), 0);
  for (int rank = 0; rank < group.size(); ++rank)
    if (group.ranks()[static_cast<std::size_t>(rank)] != rank) result.world_ranks = group.ranks();
  for (const auto& [rank_begin, events, memory, peaks, messages, whole_layers] : all) {
    result.whole_layers.insert(result.whole_layers.end(), whole_layers.begin(), whole_layers.end());
    const double shift = rank_begin - first;
    for (schedule::Event event : events) {
      event.begin += shift;
      event.end += shift;
      result.events.push_back(event);
    }
    for (schedule::MemorySample sample : memory) {
      sample.time += shift;
      result.memory.push_back(sample);
    }
    for (schedule::TensorMessage message : messages) {
      for (double* time : {&message.begin, &message.wait, &message.end}) *time += shift;
      result.tensor_messages.push_back(message);
    }
    for (std::size_t i = 0; i < std::min(result.peak_bytes.size(), peaks.size()); ++i)
      result.peak_bytes[i] = std::max(result.peak_bytes[i], peaks[i]);
  }
  return result;
}

}  // namespace trestle::pipeline
