#include "tests/fuzz/fuzz.h"
#include "tests/schedule/tables.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::schedule {
namespace {

TEST(Fuzz, ActionText) {
  const std::vector<std::string> seeds = {"2F0",          "1B3",
                                          "1I3",          "0W3",
                                          "1R3",          "2UNSHARD",
                                          "0SEND_F12",    "3RECV_B1",
                                          "2F0@2",        "0SEND_SKIP2:r1",
                                          "1NORM",        "3RECV_SKIP_B2:r10@4",
                                          "0REDUCE_GRAD", "(0F3;1B2)OVERLAP_F_B"};
  const auto result = fuzz::run(seeds, [](std::string_view text) {
    const Action action = parse_action(text);
    // An accepted action survives a round trip.
    EXPECT_EQ(parse_action(to_string(action)), action) << text;
  });
  EXPECT_GT(result.accepted, 500);
  EXPECT_GT(result.refused, 5000);
}

std::vector<std::string> tables() {
  std::vector<std::string> seeds = {"0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n", "0F0,0I0,0W0,0STEP\n",
                                    "0F0,0SEND_F0,0RECV_B0,0B0\r\n1RECV_F0,1F0,1B0,1SEND_B0\r\n",
                                    "0F0,\"(0F1;0B0)OVERLAP_F_B\",0B1\n", ""};
  for (const auto& info : known_schedules()) {
    const Schedule table = schedule::tables::table_on_ranks(info, 3, 2);
    seeds.push_back(to_csv(table));
    LowerOptions options;
    options.routes = main_lane(table.stages);
    options.routes->push_back({0, 2, true, "s1"});
    options.routes->push_back({0, 1, true, "a \"b\",\nc"});
    options.recompute.assign(static_cast<std::size_t>(table.stages), Recompute::ExceptLast);
    seeds.push_back(to_csv(lower(table, options)));
  }
  return seeds;
}

TEST(Fuzz, CsvRoundTrip) {
  const auto result = fuzz::run(tables(), [](std::string_view text) {
    const Schedule schedule = parse_csv(text);
    EXPECT_EQ(parse_csv(to_csv(schedule)).ranks.size(), schedule.ranks.size());
    EXPECT_EQ(parse_csv(to_csv(schedule)), schedule) << fuzz::literal(text);
  });
  EXPECT_GT(result.accepted, 500);
  EXPECT_GT(result.refused, 5000);
}

// A table that validate() accepts can be lowered and simulated.
TEST(Fuzz, CsvThroughValidateLowerAndSimulate) {
  const auto result = fuzz::run(
      tables(),
      [](std::string_view text) {
        const Schedule schedule = parse_csv(text);
        validate(schedule);
        if (!schedule.routes.empty()) {
          EXPECT_NO_THROW(simulate::simulate(schedule, simulate::unit_costs(schedule.stages)))
              << fuzz::literal(text);
          return;
        }
        const Schedule lowered = lower(schedule, {});
        EXPECT_NO_THROW(validate(lowered)) << fuzz::literal(text);
        simulate::simulate(lowered, simulate::unit_costs(lowered.stages));
      },
      {.seed = 2});
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 5000);
}

}  // namespace
}  // namespace trestle::schedule
