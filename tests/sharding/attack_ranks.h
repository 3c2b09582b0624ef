#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <string>

#include "attack.h"

// Helpers for tests in which a rank fails or differs.
namespace trestle::testing {

struct Net : Model {
  Net() {
    a = register_module("a", torch::nn::Linear(width, 7));
    b = register_module("b", torch::nn::Linear(7, width));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor hidden = torch::tanh(a(x));
    if (failures-- > 0) throw std::runtime_error("boom");
    return b(hidden);
  }
  int failures = 0;
  torch::nn::Linear a{nullptr}, b{nullptr};
};

using SGD = torch::optim::SGD;

inline DeviceMesh shards(World& world) { return {world, {{"shard", world.size()}}}; }

inline at::Tensor own_rows(const World& world, int step = 0) {
  return rows(2 * world.size(), 100 + static_cast<std::uint64_t>(step))
      .narrow(0, 2 * world.rank(), 2);
}

// Expects that all ranks end within a second with an error that contains `words`.
inline void expect_error(int ranks, const std::function<void(World&)>& body,
                         const std::string& words) {
  SCOPED_TRACE(words);
  const auto begin = std::chrono::steady_clock::now();
  try {
    spawn(ranks, body, {.deadline = std::chrono::seconds(20)});
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

template <class Body>
void each_level(int ranks, const ShardOptions& given, const Body& body) {
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    spawn(ranks,
          [&](World& world) {
            ShardOptions options = given;
            options.level = level;
            SCOPED_TRACE(std::string(to_string(level)));
            body(world, options);
          },
          {.deadline = std::chrono::seconds(20)});
  }
}

}  // namespace trestle::testing
