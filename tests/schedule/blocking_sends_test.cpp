// Every lowered table runs on a transport whose sends block until their message is received.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/routes.h"

namespace trestle::schedule {
namespace {

// Each SEND waits until its RECV has run, and each RECV until its SEND has begun.
class BlockingTransport {
 public:
  explicit BlockingTransport(std::chrono::milliseconds deadline) : deadline_(deadline) {}

  // False after the deadline.
  bool send(const Transfer& transfer) {
    std::unique_lock lock(mutex_);
    states_[transfer] = State::Offered;
    changed_.notify_all();
    return changed_.wait_for(lock, deadline_, [&] { return states_[transfer] == State::Received; });
  }
  bool receive(const Transfer& transfer) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline_, [&] { return states_[transfer] == State::Offered; }))
      return false;
    states_[transfer] = State::Received;
    changed_.notify_all();
    return true;
  }

 private:
  enum class State { None, Offered, Received };

  std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Transfer, State> states_;
};

// Runs each rank's list in a thread. Returns the number of ranks that reached its end.
int ranks_that_end(const std::vector<std::vector<Action>>& rows, const RouteTable& routes,
                   std::chrono::milliseconds deadline) {
  BlockingTransport transport(deadline);
  std::vector<int> ended(rows.size(), 0);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < rows.size(); ++rank)
    threads.emplace_back([&, rank] {
      for (const Action& action : rows[rank]) {
        const auto transfer = routes.of(action);
        if (!transfer) continue;
        if (!(is_send(action.kind) ? transport.send(*transfer) : transport.receive(*transfer)))
          return;
      }
      ended[rank] = 1;
    });
  for (std::thread& thread : threads) thread.join();
  int count = 0;
  for (const int one : ended) count += one;
  return count;
}

constexpr std::chrono::milliseconds patience{20'000};

TEST(BlockingSends, RunEveryLoweredTable) {
  int tables = 0;
  for (const ScheduleInfo& known : known_schedules())
    for (const int ranks : {2, 3, 4})
      for (const int micro_batches : {2 * ranks, 4 * ranks}) {
        const int each = stages_per_rank(known.name, 0);
        const int stages = ranks * each;
        const Schedule table =
            generate(known.name,
                     {.stages = stages, .micro_batches = micro_batches, .stages_per_rank = each});
        std::vector<Route> routes = main_lane(stages);
        for (const auto& [from, to] : {std::pair(0, stages - 1), std::pair(0, stages / 2)})
          routes.push_back({.from_stage = from, .to_stage = to, .skip = true, .name = text(to)});
        for (const SkipSend skip_send : {SkipSend::Eager, SkipSend::JustInTime})
          for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
            const Schedule lowered =
                lower(table, {.routes = routes,
                              .recompute = std::vector(static_cast<std::size_t>(stages), recompute),
                              .skip_send = skip_send});
            EXPECT_EQ(ranks_that_end(lowered.ranks, RouteTable(lowered), patience), ranks)
                << known.name << ", " << ranks << " ranks, " << micro_batches << " micro-batches";
            ++tables;
          }
      }
  EXPECT_EQ(tables, 24 * static_cast<int>(known_schedules().size()));
}

// The test can fail: two ranks that both send first wait for each other.
TEST(BlockingSends, NeverEndIfBothRanksSendFirst) {
  const std::vector<Route> routes = main_lane(2);
  const auto row = [](std::initializer_list<const char*> cells) {
    std::vector<Action> actions;
    for (const char* cell : cells) actions.push_back(parse_action(cell));
    return actions;
  };
  EXPECT_EQ(ranks_that_end({row({"0SEND_F1", "0RECV_B0"}), row({"1SEND_B0", "1RECV_F1"})},
                           RouteTable(2, routes), std::chrono::milliseconds(100)),
            0);
}

}  // namespace
}  // namespace trestle::schedule
