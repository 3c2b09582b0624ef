// The record of a Sharded's communication and computation.
#include <gtest/gtest.h>

#include "attack.h"
#include "trestle/base/error.h"
#include "trestle/nn/layers.h"

namespace trestle {
namespace {

using namespace testing;
using What = ShardEvent::What;

std::int64_t count(const ShardRecord& record, What what) {
  return std::count_if(record.events.begin(), record.events.end(),
                       [&](const ShardEvent& event) { return event.what == what; });
}

// The index of an event in the record, which is sorted by begin.
std::ptrdiff_t place(const ShardRecord& record, What what, int part, std::int64_t step) {
  const auto found =
      std::find_if(record.events.begin(), record.events.end(), [&](const ShardEvent& event) {
        return event.what == what && event.part == part && event.step == step;
      });
  EXPECT_NE(found, record.events.end());
  return found - record.events.begin();
}

nn::Layers three_layers() {
  nn::Layers net(nn::Seed{2});
  for (const char* name : {"a", "b", "c"}) {
    net.add(name, [] { return torch::nn::Linear(width, width); });
    net.add(std::string(name) + "_act", torch::nn::Tanh());
  }
  return net;
}

TEST(ShardedRecord, MatchesCountsOfReport) {
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    for (const bool rows_of_two : {false, true}) {
      spawn(2 + 2 * static_cast<int>(rows_of_two), [&](World& world) {
        const DeviceMesh mesh(world, {{"replicate", world.size() / 2}, {"shard", 2}});
        Sharded sharded(three_layers(), mesh,
                        {.level = level, .buckets = {.size = 128, .first = 128}});
        torch::optim::SGD optimizer(sharded.parameters(), 0.1);
        const ShardReport before = sharded.report();
        sharded.start_recording();
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          sharded.backward(sharded.forward(at::ones({2, width})).square().mean());
          optimizer.step();
        }
        {
          const at::NoGradGuard no_grad;
          sharded.forward(at::ones({2, width}));
        }
        const ShardRecord record = sharded.stop_recording();
        const ShardReport report = sharded.report();
        EXPECT_EQ(count(record, What::Gather), report.gathers - before.gathers);
        EXPECT_EQ(count(record, What::Reduce), report.reductions - before.reductions);
        const std::int64_t units = static_cast<std::int64_t>(record.units.size());
        EXPECT_EQ(units, level == ShardLevel::Parameters ? 3 : 0);
        EXPECT_EQ(count(record, What::Forward), 4 + 4 * units);
        EXPECT_EQ(count(record, What::Backward), 3 + 3 * units);
        for (const ShardEvent& event : record.events) {
          EXPECT_GE(event.end, event.begin);
          EXPECT_GE(event.begin, 0);
        }
        EXPECT_GE(hidden_share(record), 0);
        EXPECT_LE(hidden_share(record), 1);
      });
    }
  }
}

struct Watched : TwoLinears {
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor hidden = torch::tanh(a(x));
    if (hidden.requires_grad() && between)
      hidden.register_hook([this](const at::Tensor&) { between(); });
    return b(hidden);
  }
  std::function<void()> between;  // called between the backwards of b and a
};

// The gradients of b are being reduced between the backwards of b and a, which run in one thread.
TEST(ShardedRecord, ReductionsBeginBeforeBackwardEnds) {
  for (const ShardLevel level : levels) {
    if (level == ShardLevel::Parameters) continue;  // a torch module is one unit
    SCOPED_TRACE(std::string(to_string(level)));
    spawn(2, [&](World& world) {
      const auto net = std::make_shared<Watched>();
      ShardedModule<Watched> sharded(net, DeviceMesh(world, {{"shard", 2}}),
                                     {.level = level, .buckets = {.size = 256, .first = 128}});
      std::int64_t seen = 0;
      net->between = [&] { seen = sharded.report().reductions; };
      sharded.start_recording();
      for (std::int64_t step = 0; step < 2; ++step) {
        const std::int64_t before = sharded.report().reductions;
        sharded.backward(sharded.forward(rows(2, 1)).square().mean());
        EXPECT_GT(seen, before);
        EXPECT_LT(seen, sharded.report().reductions);
      }
      const ShardRecord record = sharded.stop_recording();
      for (std::int64_t step = 0; step < 2; ++step) {
        const auto& backward =
            record.events[static_cast<std::size_t>(place(record, What::Backward, -1, step))];
        const std::ptrdiff_t first = place(record, What::Reduce, 0, step);
        EXPECT_LE(record.events[static_cast<std::size_t>(first)].begin, backward.end);
        // The step's last wait covers all reductions.
        std::ptrdiff_t wait = 0;
        for (std::size_t i = 0; i < record.events.size(); ++i)
          if (record.events[i].what == What::Wait && record.events[i].step == step)
            wait = static_cast<std::ptrdiff_t>(i);
        EXPECT_LT(first, wait);
      }
    });
  }
}

// The last unit's gradients are reduced before the first units' backward, and the next unit's
// parameters are prefetched.
TEST(ShardedRecord, ShowsPrefetchAndOverlappedReduction) {
  spawn(2, [](World& world) {
    Sharded sharded(three_layers(), DeviceMesh(world, {{"shard", 2}}),
                    {.level = ShardLevel::Parameters});
    sharded.start_recording();
    for (int step = 0; step < 2; ++step)
      sharded.backward(sharded.forward(at::ones({2, width})).square().mean());
    const ShardRecord record = sharded.stop_recording();
    EXPECT_EQ(record.units, (std::vector<std::string>{"a", "b", "c"}));
    for (std::int64_t step = 0; step < 2; ++step) {
      // Flat groups are in the order of their gradients: group 0 belongs to "c".
      EXPECT_LT(place(record, What::Reduce, 0, step), place(record, What::Backward, 0, step));
      EXPECT_LT(place(record, What::Reduce, 1, step), place(record, What::Reduce, 2, step));
    }
    EXPECT_LT(place(record, What::Gather, 1, 1), place(record, What::Forward, 0, 1));
  });
}

TEST(ShardedRecord, ComputesHiddenShareOfCommunication) {
  const auto event = [](What what, double begin, double end) {
    return ShardEvent{.what = what, .begin = begin, .end = end};
  };
  ShardRecord record;
  EXPECT_EQ(hidden_share(record), 0);
  record.events = {event(What::Backward, 0, 6), event(What::Reduce, 1, 4),
                   event(What::Reduce, 2, 5), event(What::Reduce, 6, 10), event(What::Wait, 6, 10)};
  EXPECT_DOUBLE_EQ(hidden_share(record), 0.5);  // of 1 to 5 and 6 to 10
  record.events.pop_back();
  EXPECT_DOUBLE_EQ(hidden_share(record), 1);
}

TEST(ShardedRecord, RefusesStopWithoutStart) {
  spawn(1, [](World& world) {
    Sharded sharded(three_layers(), DeviceMesh(world, {{"shard", 1}}), {});
    EXPECT_THROW(sharded.stop_recording(), StateError);
  });
}

}  // namespace
}  // namespace trestle
