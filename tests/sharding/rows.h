#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>

#include "trestle/sharding/options/shard_level.h"

// Levels of sharding and random rows, for all tests of sharding.
namespace trestle::testing {

inline constexpr std::array levels = {ShardLevel::None, ShardLevel::OptimizerState,
                                      ShardLevel::Gradients, ShardLevel::Parameters};
inline constexpr std::array sharded_levels = {ShardLevel::OptimizerState, ShardLevel::Gradients,
                                              ShardLevel::Parameters};
inline constexpr int width = 6;

inline at::Tensor rows(std::int64_t count, std::uint64_t seed, std::int64_t columns = width) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({count, columns}, generator, at::TensorOptions().dtype(at::kDouble));
}

}  // namespace trestle::testing
