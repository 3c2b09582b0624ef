// Which ranks get the cores of idle ranks.
#include "trestle/schedule/lend_cores.h"

#include <gtest/gtest.h>

#include "trestle/base/error.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/unit_times.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

Schedule lent(const std::string& name, int stages, int micro_batches, Cores cores,
              std::vector<Recompute> recompute = {}) {
  const auto table = generate(name, {.stages = stages, .micro_batches = micro_batches});
  return lend_cores(lower(table, {.recompute = std::move(recompute)}), cores);
}

std::string computed_by(const Schedule& schedule, int rank) {
  std::string words;
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)])
    if (is_compute(action.kind)) words += (words.empty() ? "" : " ") + to_string(action);
  return words;
}

TEST(LendCores, FillsTheBubbleOfGPipe) {
  const auto table = lent("gpipe", 2, 2, {.all = 2, .each_rank = 1});
  EXPECT_EQ(computed_by(table, 0), "0F0@2 0F1 0B1 0B0@2");
  EXPECT_EQ(computed_by(table, 1), "1F0 1F1@2 1B1@2 1B0");
  validate(table);
}

TEST(LendCores, FillsTheBubbleOf1F1B) {
  const auto table = lent("1f1b", 2, 3, {.all = 16, .each_rank = 8});
  EXPECT_EQ(computed_by(table, 0), "0F0@16 0F1 0B0 0F2 0B1 0B2@16");
  validate(table);
}

TEST(LendCores, SharesCoresEquallyAmongBusyRanks) {
  const auto table = lent("gpipe", 4, 1, {.all = 8, .each_rank = 2});
  for (int rank = 0; rank < 4; ++rank) {
    const std::string n = std::to_string(rank);
    EXPECT_EQ(computed_by(table, rank), n + "F0@8 " + n + "B0@8");
  }
  const auto two_at_once = lent("gpipe", 4, 2, {.all = 8, .each_rank = 2});
  EXPECT_EQ(computed_by(two_at_once, 1), "1F0@4 1F1@4 1B1@4 1B0@4");
}

TEST(LendCores, NeverGivesARankFewerThanItsOwnCores) {
  const auto table = lent("gpipe", 2, 2, {.all = 2, .each_rank = 2});
  EXPECT_EQ(computed_by(table, 0), "0F0 0F1 0B1 0B0");
}

TEST(LendCores, ChangesNothingWithoutIdleRanks) {
  const auto table = lent("gpipe", 1, 3, {.all = 4, .each_rank = 4});
  EXPECT_EQ(computed_by(table, 0), "0F0 0F1 0F2 0B2 0B1 0B0");
}

// For every schedule and size, the cores in use at any moment exist.
TEST(LendCores, NeverUsesMoreCoresThanTheMachineHas) {
  for (const std::string name : {"gpipe", "1f1b"}) {
    for (const Recompute mode : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
      for (int stages = 1; stages <= 5; ++stages) {
        for (int count = 1; count <= 7; ++count) {
          const Cores cores{.all = 3 * stages + 1, .each_rank = 3};
          const auto table = lent(name, stages, count, cores,
                                  std::vector<Recompute>(static_cast<std::size_t>(stages), mode));
          const auto times = unit_times(table);
          for (double moment = 0.5; moment < 200; moment += 1) {
            int used = 0;
            for (std::size_t rank = 0; rank < times.size(); ++rank) {
              for (std::size_t i = 0; i < times[rank].size(); ++i) {
                if (times[rank][i].begin > moment || times[rank][i].end < moment) continue;
                const int threads = table.ranks[rank][i].threads;
                if (is_compute(table.ranks[rank][i].kind)) used += threads > 0 ? threads : 3;
              }
            }
            ASSERT_LE(used, cores.all) << name << " " << stages << " x " << count;
          }
        }
      }
    }
  }
}

TEST(LendCores, RejectsInvalidNumbers) {
  EXPECT_THROW(lent("gpipe", 2, 2, {.all = 0, .each_rank = 1}), UsageError);
  EXPECT_THROW(lent("gpipe", 2, 2, {.all = 2, .each_rank = 0}), UsageError);
  EXPECT_THROW(lent("gpipe", 2, 2, {.all = 1000, .each_rank = 1}), UsageError);
}

}  // namespace
}  // namespace trestle::schedule
