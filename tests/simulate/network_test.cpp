#include "trestle/simulate/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string_view>

#include "tests/schedule/tables.h"
#include "tests/simulate/event_of.h"
#include "trestle/base/error.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/collective_traffic.h"
#include "trestle/simulate/host_ports.h"
#include "trestle/simulate/simulate.h"

namespace trestle::simulate {
namespace {

using schedule::Event;
using schedule::Schedule;
using schedule::Timeline;
using testing::DoubleEq;
using testing::DoubleNear;
using testing::ElementsAre;

Schedule gpipe_with(int stages, int micro_batches, std::vector<schedule::Route> skips = {}) {
  return lower(schedule::generate("gpipe", {.stages = stages, .micro_batches = micro_batches}),
               {.routes = schedule::tables::with_skips(stages, std::move(skips))});
}

// Each stage on a host of its own, 100 bytes per second; all routes carry 50 bytes.
Costs over_hosts(const Schedule& lowered, Link link = {.bandwidth = 100}) {
  Costs costs = unit_costs(lowered.stages);
  costs.routes.assign(lowered.routes.size(), {.bytes = 50});
  costs.network.emplace(Network{.link = link, .hosts = {{}}});
  for (int stage = 0; stage < lowered.stages; ++stage) costs.network->hosts[0].push_back(stage);
  return costs;
}

TEST(Network, TwoMessagesOnOneLinkTakeTwiceAsLong) {
  const Schedule lowered = gpipe_with(2, 1, {{0, 1, true, "skip"}});
  const Timeline timeline = simulate(lowered, over_hosts(lowered));
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 1.5);
  EXPECT_EQ(event_of(timeline, "1RECV_SKIP0:r1").begin, 2);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 2);
  Costs apart = over_hosts(lowered);
  apart.network.reset();
  for (RouteCost& route : apart.routes) route.seconds = 0.5;
  EXPECT_EQ(event_of(simulate(lowered, apart), "1F0").begin, 1.5);
}

TEST(Network, MessageArrivesALatencyAfterItsLastByte) {
  const Schedule lowered = gpipe_with(2, 1, {{0, 1, true, "skip"}});
  const Timeline timeline =
      simulate(lowered, over_hosts(lowered, {.bandwidth = 100, .latency = 0.25}));
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 1.75);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 2.25);  // the latencies of both overlap
  EXPECT_EQ(event_of(timeline, "0RECV_B0").begin, 2.25 + 3 + 0.5 + 0.25);
}

TEST(Network, MessagesQueueInTheOrderOfSending) {
  const Schedule lowered = gpipe_with(2, 3);
  Costs costs = over_hosts(lowered);
  costs.routes[0].bytes = 150;  // longer than a forward
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_EQ(event_of(timeline, "0SEND_F2").begin, 3);
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 2.5);
  EXPECT_EQ(event_of(timeline, "1RECV_F1").begin, 4);
  EXPECT_EQ(event_of(timeline, "1RECV_F2").begin, 5.5);
}

TEST(Network, DirectionsOfAPortDoNotShareIt) {
  HostPorts ports({.bandwidth = 100}, 3);
  const schedule::Action send = schedule::parse_action("0SEND_F0");
  EXPECT_EQ(ports.hold({{.host = 0, .sent = 50}, {.host = 1, .received = 50}}, 1, send, 0), 1.5);
  EXPECT_EQ(ports.hold({{.host = 1, .sent = 50}, {.host = 0, .received = 50}}, 1, send, 1), 1.5);
  // Host 1 receives from two hosts, and host 0 sends to two.
  EXPECT_EQ(ports.hold({{.host = 2, .sent = 50}, {.host = 1, .received = 50}}, 1, send, 2), 2);
  EXPECT_EQ(ports.hold({{.host = 0, .sent = 50}, {.host = 2, .received = 50}}, 1, send, 0), 2);
  ASSERT_EQ(ports.crossings().size(), 4);
  EXPECT_EQ(ports.crossings()[3].begin, 1.5);
}

TEST(Network, ReplicasOfOneHostShareItsPort) {
  const Schedule lowered = gpipe_with(2, 1);
  Costs costs = over_hosts(lowered);
  costs.network->hosts = {{0, 1}, {0, 1}};
  EXPECT_EQ(event_of(simulate(lowered, costs), "1F0").begin, 2);
  costs.network->hosts = {{0, 1}, {2, 3}};
  EXPECT_EQ(event_of(simulate(lowered, costs), "1F0").begin, 1.5);
  costs.network->hosts = {{0, 0}, {1, 1}};  // no message crosses
  EXPECT_EQ(event_of(simulate(lowered, costs), "1F0").begin, 1);
}

TEST(Network, RankRequestsTheTensorsOfAMessage) {
  const Schedule lowered = gpipe_with(2, 1, {{0, 1, true, "skip"}});
  Costs costs = over_hosts(lowered, {.latency = 0.25});
  costs.transfer_mode = TransferMode::Prefetch;
  costs.network->in_first_part = 10;
  // The first parts arrive at 1.25. A request and the tensors follow, message by message.
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 1.75);
  EXPECT_EQ(event_of(timeline, "1RECV_SKIP0:r1").begin, 2.25);
  costs.network->in_first_part = 50;
  EXPECT_EQ(event_of(simulate(lowered, costs), "1F0").begin, 1.25);
}

// A whole message takes the link as long as its bytes do, and waits for no request. One that is not
// whole is fetched beside it.
TEST(Network, WholeMessageNeedsNoRequest) {
  const Schedule lowered = gpipe_with(2, 2, {{0, 1, true, "skip"}});
  Costs costs = over_hosts(lowered, {.bandwidth = 100, .latency = 0.25});
  costs.transfer_mode = TransferMode::Prefetch;
  costs.network->first_part = 0;
  costs.network->in_first_part = 50;
  const Timeline whole = simulate(lowered, costs);
  EXPECT_EQ(event_of(whole, "1RECV_F0").begin, 1.75);
  EXPECT_EQ(event_of(whole, "1RECV_SKIP0:r1").begin, 2.25);
  costs.routes[1].bytes = 51;
  const Timeline mixed = simulate(lowered, costs);
  EXPECT_EQ(event_of(mixed, "1RECV_F0").begin, 1.75);
  EXPECT_GT(event_of(mixed, "1RECV_SKIP0:r1").begin, 2.5);  // a request and an answer
  EXPECT_EQ(event_of(mixed, "1RECV_F1").begin, 2.75);
}

// With 1F1B both directions carry tensors. A request leaves after what its rank sent before.
TEST(Network, RequestWaitsForWhatItsHostSends) {
  const Schedule lowered = lower(schedule::generate("1f1b", {.stages = 2, .micro_batches = 2}), {});
  Costs costs = over_hosts(lowered, {.bandwidth = 1e4});
  costs.transfer_mode = TransferMode::Prefetch;
  costs.network->first_part = 0;
  costs.network->in_first_part = 0;
  costs.routes[0].bytes = 40'000;  // 4 s
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_NEAR(event_of(timeline, "1F0").begin, 1 + 0.0064 + 4, 1e-9);
  // 0F1 ends at 2 and is fetched from 5.0064 to 9.0128. The gradient of 1B0 is there at 8.0064, and
  // its request waits until 9.0128.
  EXPECT_NEAR(event_of(timeline, "0B0").begin, 9.0128 + 0.0064 + 4, 1e-9);
}

TEST(Network, RankFetchesTwoMessagesAhead) {
  const Schedule lowered = gpipe_with(2, 4);
  Costs costs = over_hosts(lowered, {.bandwidth = 1e4, .latency = 0});
  costs.transfer_mode = TransferMode::Prefetch;
  costs.network->in_first_part = 0;
  costs.network->first_part = 0;
  costs.stages[1].forward = 10;
  costs.routes[0].bytes = 10'000;  // a second
  const Timeline timeline = simulate(lowered, costs);
  const double request = 0.0064;
  EXPECT_NEAR(event_of(timeline, "1RECV_F0").begin, 2 + request, 1e-9);
  EXPECT_NEAR(event_of(timeline, "1RECV_F1").begin, 3 + 2 * request, 1e-9);
  EXPECT_NEAR(event_of(timeline, "1RECV_F2").begin, 4 + 3 * request, 1e-9);
  // After the second one was taken.
  EXPECT_NEAR(event_of(timeline, "1RECV_F3").begin, event_of(timeline, "1F1").begin + 1 + request,
              1e-9);
}

// One stage whose parameters two hosts replicate or shard.
Costs one_stage(StageTraffic traffic, Link link = {.bandwidth = 100}) {
  Costs costs = unit_costs(1);
  traffic.hosts = {0, 1};
  costs.network.emplace(Network{.link = link, .hosts = {{0}, {1}}, .stages = {traffic}});
  return costs;
}

Schedule data_parallel(int micro_batches) {
  return add_reductions(
      lower(schedule::generate("gpipe", {.stages = 1, .micro_batches = micro_batches}), {}));
}

TEST(Network, ReductionsOverlapWithTheLastBackward) {
  StageTraffic traffic{
      .buckets = {{.reduce = {.bytes = 50}, .ready = 0.5}, {.reduce = {.bytes = 50}, .ready = 1}}};
  const Timeline timeline = simulate(data_parallel(2), one_stage(traffic));
  // Backwards from 2 to 4 and 4 to 6. The first reduction takes from 5 to 5.5.
  EXPECT_EQ(event_of(timeline, "0REDUCE_GRAD").begin, 6);
  EXPECT_EQ(event_of(timeline, "0REDUCE_GRAD").end, 6.5);
  traffic.end = {.latencies = 3};
  EXPECT_EQ(
      makespan(simulate(data_parallel(2), one_stage(traffic, {.bandwidth = 100, .latency = 0.25}))),
      6.5 + 0.75);
}

TEST(Network, CollectivesSendBothWays) {
  const StageTraffic traffic{.buckets = {{.reduce = {.bytes = 50}}}};
  const Link link{.bandwidth = 100, .both_ways = 0.5};
  EXPECT_EQ(makespan(simulate(data_parallel(1), one_stage(traffic, link))), 3 + 1);
}

TEST(Network, BackwardWaitsForReductionsInFlight) {
  StageTraffic traffic;
  for (const double ready : {0.25, 0.5, 0.75, 1.0})
    traffic.buckets.push_back({.reduce = {.bytes = 200}, .ready = ready});
  EXPECT_EQ(event_of(simulate(data_parallel(1), one_stage(traffic)), "0B0").end, 3);
  traffic.most_in_flight = 2;
  // The third waits for the first, which ends at 1.5 + 2, and the fourth for the second.
  const Timeline timeline = simulate(data_parallel(1), one_stage(traffic));
  EXPECT_EQ(event_of(timeline, "0B0").end, 5.5);
  EXPECT_EQ(makespan(timeline), 9.5);
}

TEST(Network, UnshardWaitsForItsGathers) {
  const Timeline timeline = simulate(
      data_parallel(1),
      one_stage({.unshard = {{.bytes = 50, .latencies = 2}, {.bytes = 100, .latencies = 2}}},
                {.bandwidth = 100, .latency = 0.25}));
  EXPECT_EQ(event_of(timeline, "0F0").begin, 2.5);
}

TEST(Network, UnitGathersWhileTheOneBeforeComputes) {
  const StageTraffic traffic{
      .units = {{.gather = {.bytes = 50}, .forward = 0.5, .backward = 0.25},
                {.gather = {.bytes = 100}, .forward = 0.5, .backward = 0.75}}};
  const Timeline timeline = simulate(data_parallel(1), one_stage(traffic));
  // The first computes from 0.5 to 1; the second is gathered from 0.5 to 1.5.
  EXPECT_EQ(event_of(timeline, "0F0").end, 2);
  // Gathered from 2 to 3, and until 3.5 the other one, during a backward of 1.5.
  EXPECT_EQ(event_of(timeline, "0B0").end, 5);
}

TEST(Network, CollectivesWithinAHostDoNotCross) {
  Costs costs = one_stage({.buckets = {{.reduce = {.bytes = 500, .latencies = 3, .seconds = 1}}}});
  costs.network->stages[0].hosts = {0};
  EXPECT_EQ(makespan(simulate(data_parallel(1), costs)), 4);
}

TEST(Network, RanksSendWhatRingAlgorithmsSend) {
  for (const int n : {2, 3, 8}) {
    std::vector<int> hosts;
    for (int rank = 0; rank < n; ++rank) hosts.push_back(rank);
    const double ring = 1e6 * (n - 1) / n;
    EXPECT_THAT(traffic_of(CollectiveKind::AllReduce, 1e6, {hosts}).bytes, DoubleNear(2 * ring, 1));
    EXPECT_THAT(traffic_of(CollectiveKind::ReduceScatter, 1e6, {hosts}).bytes, DoubleNear(ring, 1));
    EXPECT_THAT(traffic_of(CollectiveKind::AllGather, 1e6, {hosts}).bytes, DoubleNear(ring, 1));
  }
}

// A table of 200 bytes, owned by the first stage and used by the last one too.
TEST(Network, TiedParametersTakeTheTimeOfTheirBytes) {
  const Schedule lowered = gpipe_with(2, 1);
  Costs costs = over_hosts(lowered);
  EXPECT_EQ(makespan(simulate(lowered, costs)), 7);
  costs.ties = {{.owner = 0, .copy = 1, .bytes = 200}};
  const Timeline timeline = simulate(lowered, costs);
  // The value holds the link until 2, and the activation of 0F0 follows it.
  EXPECT_EQ(event_of(timeline, "1F0").begin, 2.5);
  // The copy's gradient leaves before that of the activation.
  EXPECT_EQ(event_of(timeline, "1B0").end, 5.5);
  EXPECT_EQ(event_of(timeline, "0B0").begin, 5.5 + 2 + 0.5);
  EXPECT_EQ(makespan(timeline), 10);
  double on_link = 0;
  for (const schedule::Crossing& crossing : timeline.crossings)
    on_link += crossing.end - crossing.begin;
  EXPECT_EQ(on_link, 2 * (2 + 0.5));
  costs.ties[0].frozen = true;  // no gradient
  EXPECT_EQ(makespan(simulate(lowered, costs)), 8);
  costs.ties[0] = {.owner = 1, .copy = 0, .bytes = 200};  // the first forward waits for its value
  EXPECT_EQ(event_of(simulate(lowered, costs), "0F0").begin, 2);
  costs.ties[0] = {.owner = 0, .copy = 1, .bytes = 200, .seconds = 3};
  costs.network->hosts = {{0, 0}};
  EXPECT_EQ(event_of(simulate(lowered, costs), "1F0").begin, 3);  // its time within a host
}

// Between ranks the value is fetched after the activation that its forward takes.
TEST(Network, RankRequestsTheTensorsOfATiedParameter) {
  const Schedule lowered = gpipe_with(2, 1);
  Costs costs = over_hosts(lowered, {.latency = 0.25});
  costs.transfer_mode = TransferMode::Prefetch;
  costs.network->in_first_part = 10;
  costs.ties = {{.owner = 0, .copy = 1, .bytes = 200, .frozen = true}};
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 1.75);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 2.25);
}

TEST(Network, PortCarriesAllRanksOfItsHost) {
  // Two ranks on each of two hosts: each sends a quarter to both ranks of the other host.
  EXPECT_THAT(traffic_of(CollectiveKind::AllGather, 1000, {{0, 0, 1, 1}}).bytes, DoubleEq(1000));
  // HSDP: rows inside a host, columns between them.
  const std::vector<std::vector<int>> rows = {{0, 0}, {1, 1}}, columns = {{0, 1}, {0, 1}};
  EXPECT_EQ(traffic_of(CollectiveKind::ReduceScatter, 1000, rows).bytes, 0);
  EXPECT_EQ(traffic_of(CollectiveKind::ReduceScatter, 1000, rows).latencies, 0);
  EXPECT_THAT(traffic_of(CollectiveKind::AllReduce, 500, columns).bytes, DoubleEq(1000));
}

TEST(Network, TimelineHasWhatLeavesEachHost) {
  const Schedule lowered = gpipe_with(2, 1);
  const Timeline timeline = simulate(lowered, over_hosts(lowered));
  EXPECT_THAT(timeline.host_of_rank, ElementsAre(0, 1));
  ASSERT_EQ(timeline.crossings.size(), 2);
  EXPECT_EQ(timeline.crossings[0].host, 0);
  EXPECT_EQ(timeline.crossings[0].action, schedule::parse_action("0SEND_F0"));
  EXPECT_EQ(timeline.crossings[0].begin, 1);
  EXPECT_EQ(timeline.crossings[0].end, 1.5);
  EXPECT_EQ(timeline.crossings[1].host, 1);
}

// Two replicas on a host each, whose stages share a thread. Their reductions take no time.
TEST(Network, OneThreadRunsTheStagesOfAHostInTurn) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const Schedule lowered =
        add_reductions(lower(schedule::generate(name, {.stages = 3, .micro_batches = 4}), {}));
    Costs alone = unit_costs(lowered.stages);
    alone.concurrency = Concurrency::OneThread;
    Costs replicated = alone;
    replicated.network.emplace(
        Network{.link = {.bandwidth = 100}, .hosts = {{0, 0, 0}, {1, 1, 1}}});
    replicated.network->stages.assign(3, {.hosts = {0, 1}});
    const Timeline expected = simulate(lowered, alone), timeline = simulate(lowered, replicated);
    ASSERT_EQ(timeline.events.size(), expected.events.size());
    for (const Event& event : expected.events)
      EXPECT_EQ(event_of(timeline, to_string(event.action)).begin, event.begin)
          << name << ": " << to_string(event.action);
  }
}

// A reduction that the thread waits for keeps the stages after it waiting too.
TEST(Network, CollectiveKeepsTheWholeThreadWaiting) {
  const Schedule lowered = add_reductions(gpipe_with(2, 1));
  Costs costs = unit_costs(2);
  costs.concurrency = Concurrency::OneThread;
  costs.network.emplace(Network{.link = {.bandwidth = 100}, .hosts = {{0, 0}, {1, 1}}});
  costs.network->stages.assign(2, {.hosts = {0, 1}});
  costs.network->stages[1].end.bytes = 300;
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_EQ(event_of(timeline, "1REDUCE_GRAD").end - event_of(timeline, "1REDUCE_GRAD").begin, 3);
  EXPECT_EQ(event_of(timeline, "0B0").begin, event_of(timeline, "1REDUCE_GRAD").end);
}

TEST(Network, RefusesWrongNetworks) {
  const Schedule lowered = gpipe_with(2, 1);
  const auto refused = [&](const auto& change) {
    Costs costs = over_hosts(lowered);
    change(costs);
    EXPECT_THROW(simulate(lowered, costs), UsageError);
  };
  refused([](Costs& costs) { costs.network->hosts.clear(); });
  refused([](Costs& costs) { costs.network->hosts = {{0}}; });
  refused([](Costs& costs) { costs.network->hosts = {{0, -1}}; });
  refused([](Costs& costs) { costs.network->link.latency = -1; });
  refused([](Costs& costs) { costs.network->link.bandwidth = -1; });
  refused([](Costs& costs) {
    costs.network->link.bandwidth = std::numeric_limits<double>::infinity();
  });
  refused([](Costs& costs) { costs.network->stages.resize(1); });
  refused([](Costs& costs) { costs.concurrency = Concurrency::OneThread; });  // of two hosts
}

}  // namespace
}  // namespace trestle::simulate
