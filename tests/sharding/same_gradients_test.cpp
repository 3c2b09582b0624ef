// {levels} x {ranks} x {recomputation} x {float32, bfloat16} on thread ranks. For processes see
// same_gradients_processes_test.cpp.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/sharding/same_gradients.h"

namespace trestle::testing {
namespace {

class SameGradients : public ::testing::TestWithParam<std::tuple<int, bool, bool>> {};

TEST_P(SameGradients, AsPlainLibtorchAtEveryLevel) {
  const auto [ranks, recompute, bfloat16] = GetParam();
  spawn(ranks, [&, recompute = recompute, bfloat16 = bfloat16](World& world) {
    const DeviceMesh mesh(world, {{"shard", ranks}});
    expect_same_gradients(world, mesh, {.recompute = recompute, .bfloat16 = bfloat16});
  });
}

INSTANTIATE_TEST_SUITE_P(Matrix, SameGradients,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8), ::testing::Bool(),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_" +
                                  (std::get<1>(info.param) ? "recomputing_" : "") +
                                  (std::get<2>(info.param) ? "bfloat16" : "float32");
                         });

}  // namespace
}  // namespace trestle::testing
