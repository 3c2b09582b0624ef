// The simulated times of PyTorch's tables against those of a simulation in Python
// (tools/golden/make_schedule_goldens.py), with costs that differ.
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "trestle/base/files.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/simulate.h"

namespace trestle::simulate {
namespace {

TEST(TorchTimes, AreThoseOfASimulationInPython) {
  std::istringstream file(
      read_text_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/schedules/times.txt"));
  std::set<std::string> names;
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    std::istringstream words(line);
    std::string name;
    int ranks = 0, chunks = 0, micro_batches = 0;
    double forward = 0, input_grad = 0, weight_grad = 0, message = 0, makespan = 0, span = 0;
    words >> name >> ranks >> chunks >> micro_batches >> forward >> input_grad >> weight_grad >>
        message >> makespan >> span;
    ASSERT_TRUE(words) << line;
    // PyTorch's backwards of GPipe run in the order of the forwards.
    const schedule::Schedule table =
        lower(schedule::generate(
                  name, {.stages = ranks * chunks,
                         .micro_batches = micro_batches,
                         .backward_order = name == "gpipe" ? schedule::BackwardOrder::Forward
                                                           : schedule::BackwardOrder::Reverse,
                         .stages_per_rank = chunks}),
              {});
    Costs costs;
    costs.stages.assign(static_cast<std::size_t>(table.stages),
                        {.forward = forward,
                         .backward = input_grad + weight_grad,
                         .input_grad = input_grad,
                         .weight_grad = weight_grad});
    costs.routes.assign(table.routes.size(), {.seconds = message});
    const schedule::Timeline step = simulate(table, costs);
    EXPECT_EQ(schedule::makespan(step), makespan) << line;
    EXPECT_EQ(schedule::span_bubble(step), span) << line;
    names.insert(name);
  }
  EXPECT_EQ(cases, 406);
  EXPECT_EQ(names.size(), 7U);
}

}  // namespace
}  // namespace trestle::simulate
