#include "trestle/pipeline/profile/profile_over_ranks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "trestle/base/stopwatch.h"
#include "trestle/pipeline/transport/message_tags.h"

namespace trestle::pipeline {
namespace {

constexpr int profile_rounds = 4;

// The rows that a rank sends about its stages and routes, as bytes: all ranks run the same program.
struct StageRow {
  std::int64_t stage = 0;
  std::int64_t device = 0;  // its number among the rank's devices
  simulate::StageCost cost = {};
};
struct RouteRow {
  std::int64_t route = 0;
  simulate::RouteCost cost = {};
};
struct Head {
  std::int64_t stages = 0, routes = 0, gradients_at_start = 0;
};

template <class Row>
void append_bytes(std::string& bytes, const Row& row) {
  static_assert(std::is_trivially_copyable_v<Row>);
  bytes.append(reinterpret_cast<const char*>(&row), sizeof(Row));
}

template <class Row>
Row take_bytes(const std::string& bytes, std::size_t& at) {
  Row row;
  std::memcpy(&row, bytes.data() + at, sizeof(Row));
  at += sizeof(Row);
  return row;
}

std::string rows_of(const PartitionedModel& model, const simulate::Costs& own) {
  std::string stages, routes;
  Head head{.gradients_at_start = own.gradients_at_start ? 1 : 0};
  std::vector<at::Device> devices;
  for (const Stage& stage : model.stages) {
    const auto found = std::find(devices.begin(), devices.end(), stage.device());
    append_bytes(stages, StageRow{stage.index(), found - devices.begin(),
                                  own.stages[static_cast<std::size_t>(stage.index())]});
    if (found == devices.end()) devices.push_back(stage.device());
    ++head.stages;
  }
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r) {
    if (!model.stages.has(model.cut.routes[r].from_stage)) continue;
    append_bytes(routes, RouteRow{static_cast<std::int64_t>(r), own.routes[r]});
    ++head.routes;
  }
  std::string bytes;
  append_bytes(bytes, head);
  return bytes + stages + routes;
}

enum class Turn { First, Second };

// Seconds for one way. The rank with the first turn sends first.
double time_message(RankLink& link, const at::Tensor& message, int peer, Turn turn) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < profile_rounds; ++round) {
    const Stopwatch watch;
    if (turn == Turn::First) link.send(message, peer, timing_tag).wait();
    link.receive(message, peer, timing_tag).wait();
    if (turn == Turn::Second) link.send(message, peer, timing_tag).wait();
    if (round > 0) fastest = std::min(fastest, watch.seconds());
  }
  return fastest / 2;
}

}  // namespace

void measure_routes_between_ranks(const PartitionedModel& model, const StageExchange& exchange,
                                  simulate::Costs& costs) {
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r) {
    const auto& ends = model.cut.routes[r];
    const bool sends = model.stages.has(ends.from_stage);
    if (!exchange.crosses(r) || costs.routes[r].bytes == 0 ||
        (!sends && !model.stages.has(ends.to_stage)))
      continue;
    const int here = sends ? ends.from_stage : ends.to_stage;
    const int there = sends ? ends.to_stage : ends.from_stage;
    const at::Tensor message =
        at::empty({costs.routes[r].bytes},
                  at::TensorOptions().device(model.stages[here].device()).dtype(at::kByte))
            .fill_(1);
    costs.routes[r].seconds = time_message(exchange.link(), message, exchange.rank_of(there),
                                           sends ? Turn::First : Turn::Second);
  }
}

simulate::Costs gather_costs(const PartitionedModel& model, const StageExchange& exchange,
                             const simulate::Costs& own) {
  const auto all = exchange.link().group().all_gather_bytes(rows_of(model, own));
  simulate::Costs costs = own;
  std::vector<std::pair<std::size_t, std::int64_t>> device_of_stage(costs.stages.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::size_t at = 0;
    const auto head = take_bytes<Head>(all[rank], at);
    costs.gradients_at_start = costs.gradients_at_start || head.gradients_at_start != 0;
    for (std::int64_t i = 0; i < head.stages; ++i) {
      const auto row = take_bytes<StageRow>(all[rank], at);
      costs.stages.at(static_cast<std::size_t>(row.stage)) = row.cost;
      device_of_stage.at(static_cast<std::size_t>(row.stage)) = {rank, row.device};
    }
    for (std::int64_t i = 0; i < head.routes; ++i) {
      const auto row = take_bytes<RouteRow>(all[rank], at);
      costs.routes.at(static_cast<std::size_t>(row.route)) = row.cost;
    }
  }
  std::map<std::pair<std::size_t, std::int64_t>, int> numbers;
  costs.device_of_stage.clear();
  for (const auto& device : device_of_stage)
    costs.device_of_stage.push_back(
        numbers.try_emplace(device, static_cast<int>(numbers.size())).first->second);
  return costs;
}

}  // namespace trestle::pipeline
