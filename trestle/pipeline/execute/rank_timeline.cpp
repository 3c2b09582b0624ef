#include "trestle/pipeline/execute/rank_timeline.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>

#include "trestle/base/text.h"
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

// Numbers with all digits, separated by blanks.
std::string words_of(const schedule::Timeline& own, double begin) {
  std::ostringstream words;
  words.precision(17);
  words << begin << ' ' << own.events.size() << ' ' << own.memory.size() << '\n';
  for (const auto& event : own.events)
    words << event.rank << ' ' << schedule::to_string(event.action) << ' ' << event.action.route
          << ' ' << event.begin << ' ' << event.end << '\n';
  for (const auto& point : own.memory)
    words << point.rank << ' ' << point.time << ' ' << point.bytes << '\n';
  for (const auto bytes : own.peak_bytes) words << bytes << ' ';
  return words.str();
}

}  // namespace

schedule::Timeline gather_timeline(const comm::Group& group, schedule::Timeline own, double begin,
                                   const std::function<double()>& now) {
  const comm::Group plain = group.with_check(comm::Check::Off);
  begin += clock_offset(plain, now);
  const auto all = plain.all_gather_bytes(words_of(own, begin));
  std::vector<double> begins;
  for (const auto& words : all) begins.push_back(std::stod(words));
  const double first = *std::min_element(begins.begin(), begins.end());

  schedule::Timeline result = std::move(own);
  result.events.clear();
  result.memory.clear();
  result.peak_bytes.assign(static_cast<std::size_t>(result.rank_count), 0);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream words(all[rank]);
    double rank_begin = 0;
    std::size_t events = 0, points = 0;
    words >> rank_begin >> events >> points;
    const double shift = rank_begin - first;
    for (std::size_t i = 0; i < events; ++i) {
      schedule::Event event;
      std::string action;
      int route = 0;
      words >> event.rank >> action >> route >> event.begin >> event.end;
      event.action = schedule::parse_action(action);
      event.action.route = static_cast<decltype(event.action.route)>(route);
      event.begin += shift;
      event.end += shift;
      result.events.push_back(event);
    }
    for (std::size_t i = 0; i < points; ++i) {
      auto& point = result.memory.emplace_back();
      words >> point.rank >> point.time >> point.bytes;
      point.time += shift;
    }
    for (auto& bytes : result.peak_bytes) {
      std::int64_t peak = 0;
      words >> peak;
      bytes = std::max<std::int64_t>(bytes, peak);
    }
  }
  return result;
}

}  // namespace trestle::pipeline
