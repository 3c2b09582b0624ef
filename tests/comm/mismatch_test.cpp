// Ranks of one group make different calls: each rank gets an error that names two ranks and their
// calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/comm/mismatches.h"
#include "tests/support/run_ranks.h"
#include "trestle/comm/rank_error.h"

namespace trestle::testing {
namespace {

class ThreadMismatch : public ::testing::TestWithParam<Mismatch> {};

TEST_P(ThreadMismatch, IsReportedOnAllRanks) {
  try {
    run_ranks(2, [&](World& world) { expect_mismatch(world, GetParam()); });
  } catch (const RankError& error) {
    FAIL() << "a rank got no mismatch error: " << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ThreadMismatch, ::testing::ValuesIn(mismatches()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trestle::testing
