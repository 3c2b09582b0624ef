#include "trestle/pipeline/profile/profile_over_ranks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/comm/gather.h"
#include "trestle/pipeline/transport/message_tags.h"

namespace trestle::pipeline {
namespace {

constexpr int profile_rounds = 4;
// After a longer first round, as on a slow network, one more must do.
constexpr double long_round = 0.05;

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
struct TieRow {
  std::int64_t tie = 0;
  simulate::TieCost cost = {};
};
// The rows of one rank's stages and of the routes and ties that begin in them.
struct Rows {
  std::vector<StageRow> stages;
  std::vector<RouteRow> routes;
  std::vector<TieRow> ties;
};

// The messages of one rank's stages.
using MessageRow = std::tuple<std::int64_t, std::vector<LayerMessage>, std::vector<LayerMessage>>;

std::vector<MessageRow> messages_of(const PartitionedModel& model, const simulate::Costs& own) {
  std::vector<MessageRow> rows;
  if (own.messages.empty()) return rows;
  for (const Stage& stage : model.stages) {
    const auto& messages = own.messages[static_cast<std::size_t>(stage.index())];
    rows.emplace_back(stage.index(), messages.forward, messages.backward);
  }
  return rows;
}

Rows rows_of(const PartitionedModel& model, const simulate::Costs& own) {
  Rows rows;
  std::vector<at::Device> devices;
  for (const Stage& stage : model.stages) {
    const auto found = std::find(devices.begin(), devices.end(), stage.device());
    rows.stages.push_back({stage.index(), found - devices.begin(),
                           own.stages[static_cast<std::size_t>(stage.index())]});
    if (found == devices.end()) devices.push_back(stage.device());
  }
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r)
    if (model.stages.has(model.cut.routes[r].from_stage))
      rows.routes.push_back({static_cast<std::int64_t>(r), own.routes[r]});
  for (std::size_t i = 0; i < own.ties.size(); ++i)
    if (model.stages.has(own.ties[i].owner))
      rows.ties.push_back({static_cast<std::int64_t>(i), own.ties[i]});
  return rows;
}

enum class Turn { First, Second };

// The rank with the first turn sets the number of rounds for both.
std::int64_t agree_on_rounds(RankLink& link, double first_round, int peer, Turn turn) {
  const at::Tensor rounds =
      at::full({1}, first_round > long_round ? 1 : profile_rounds - 1, at::kLong);
  if (turn == Turn::First)
    link.send(rounds, peer, timing_tag).wait();
  else
    link.receive(rounds, peer, timing_tag).wait();
  return rounds.item<std::int64_t>();
}

// Seconds for one way. The rank with the first turn sends first. The first round is not counted.
double time_message(RankLink& link, const at::Tensor& message, int peer, Turn turn) {
  const auto round = [&] {
    const Stopwatch watch;
    if (turn == Turn::First) link.send(message, peer, timing_tag).wait();
    link.receive(message, peer, timing_tag).wait();
    if (turn == Turn::Second) link.send(message, peer, timing_tag).wait();
    return watch.seconds();
  };
  const std::int64_t rounds = agree_on_rounds(link, round(), peer, turn);
  double fastest = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < rounds; ++i) fastest = std::min(fastest, round());
  return fastest / 2;
}

}  // namespace

void measure_routes_between_ranks(const PartitionedModel& model, const StageExchange& exchange,
                                  simulate::Costs& costs) {
  const auto measure = [&](const schedule::Route& ends, Bytes bytes, double& seconds) {
    const bool sends = model.stages.has(ends.from_stage);
    const int first = exchange.rank_of(ends.from_stage), second = exchange.rank_of(ends.to_stage);
    if (first == second || bytes == 0 || (!sends && !model.stages.has(ends.to_stage))) return;
    const int here = sends ? ends.from_stage : ends.to_stage;
    const at::Tensor message =
        at::empty({bytes}, at::TensorOptions().device(model.stages[here].device()).dtype(at::kByte))
            .fill_(1);
    seconds = time_message(exchange.link(), message, sends ? second : first,
                           sends ? Turn::First : Turn::Second);
  };
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r)
    measure(model.cut.routes[r], costs.routes[r].bytes, costs.routes[r].seconds);
  for (std::size_t i = 0; i < model.cut.ties.size(); ++i)
    measure(model.cut.ties[i].route, costs.ties[i].bytes, costs.ties[i].seconds);
}

simulate::Costs gather_costs(const PartitionedModel& model, const StageExchange& exchange,
                             const simulate::Costs& own) {
  const Rows rows = rows_of(model, own);
  const auto all = comm::all_gather_values(
      exchange.link().group(), std::tuple(own.gradients_at_start, rows.stages, rows.routes,
                                          rows.ties, messages_of(model, own)));
  simulate::Costs costs = own;
  std::vector<std::pair<std::size_t, std::int64_t>> device_of_stage(costs.stages.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto& [gradients_at_start, stages, routes, ties, messages] = all[rank];
    costs.gradients_at_start = costs.gradients_at_start || gradients_at_start;
    for (const StageRow& row : stages) {
      costs.stages.at(static_cast<std::size_t>(row.stage)) = row.cost;
      device_of_stage.at(static_cast<std::size_t>(row.stage)) = {rank, row.device};
    }
    for (const RouteRow& row : routes)
      costs.routes.at(static_cast<std::size_t>(row.route)) = row.cost;
    for (const auto& [stage, forward, backward] : messages)
      costs.messages.at(static_cast<std::size_t>(stage)) = {forward, backward};
    for (const TieRow& row : ties) costs.ties.at(static_cast<std::size_t>(row.tie)) = row.cost;
  }
  std::map<std::pair<std::size_t, std::int64_t>, int> numbers;
  costs.device_of_stage.clear();
  for (const auto& device : device_of_stage)
    costs.device_of_stage.push_back(
        numbers.try_emplace(device, static_cast<int>(numbers.size())).first->second);
  return costs;
}

}  // namespace trestle::pipeline
