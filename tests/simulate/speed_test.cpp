#include <gtest/gtest.h>

#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

// Making, checking, lowering and simulating a schedule cost about the same for every action. The
// time limit is many times what they need without optimisation and under a sanitizer. With
// quadratic work (280,000 actions, 8 x 10^10 pairs) they would take much longer.
namespace trestle::simulate {
namespace {

constexpr double time_limit = 60;  // seconds

void run(const std::string& name, int stages, int micro_batches) {
  SCOPED_TRACE(text(name, ", ", stages, " stages, ", micro_batches, " micro-batches"));
  const Stopwatch watch;
  const auto table = schedule::generate(name, {.stages = stages, .micro_batches = micro_batches});
  schedule::LowerOptions options;
  options.recompute.assign(static_cast<std::size_t>(stages), schedule::Recompute::Always);
  const auto lowered = schedule::lower(table, options);
  validate(lowered);
  Costs costs = unit_costs(stages);
  for (StageCost& stage : costs.stages) stage.saved = stage.transient_backward = 3;
  costs.routes.assign(lowered.routes.size(), {.seconds = 0.1, .bytes = 2});
  costs.transfer_mode = TransferMode::Pull;
  const auto timeline = simulate(lowered, costs);
  EXPECT_EQ(timeline.peak_bytes.size(), static_cast<std::size_t>(stages));
  EXPECT_LT(watch.seconds(), time_limit);
}

TEST(Speed, SquareTables) {
  run("gpipe", 200, 200);
  run("1f1b", 200, 200);
}
TEST(Speed, ManyStages) { run("gpipe", 4000, 8); }
TEST(Speed, ManyMicroBatches) { run("1f1b", 4, 8000); }

}  // namespace
}  // namespace trestle::simulate
