#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/comm/world.h"

namespace trestle {

struct SpawnOptions {
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  int threads = 0;  // per operator in each rank; 0 = the caller's number / ranks, at least 1
};

namespace comm {
void check_thread_ranks(int ranks);  // throws UsageError unless it is 1 to 256
void run_thread_ranks(int ranks, const SpawnOptions& options,
                      const std::function<void(World&)>& function);
}  // namespace comm

// Runs `function(world)` on `ranks` ranks that are threads of this process. Returns their results
// in the order of ranks, or void if `function` does. If a rank throws, all other ranks' waits end,
// all threads are joined, and the first exception is rethrown with its rank in the message. It
// keeps its type if that is of trestle, libtorch or the standard library; an object of another type
// is nested in a ForeignError (rank_error.h).
//
//   const auto sums = trestle::spawn(4, [](trestle::World& world) {
//     at::Tensor sum = torch::ones({1}) * world.rank();
//     world.group().all_reduce(sum).wait();
//     return sum.item<double>();   // 6 on each
//   });
//
// The ranks share the process's random generator, so torch::manual_seed() in one of them also moves
// the numbers of the other ranks. Make modules and data with seeded() (device/seeded.h) instead, or
// layers as factories with nn::Seed.
//
//   trestle::spawn(4, [](trestle::World& world) {
//     auto net = trestle::seeded(7, [] { return torch::nn::Linear(8, 2); });  // the same on each
//     const auto rank = static_cast<std::uint64_t>(world.rank());
//     at::Tensor x = trestle::seeded(rank, [] { return torch::randn({4, 8}); });  // its own
//     net->forward(x);
//   });
template <class Function>
auto spawn(int ranks, const Function& function, const SpawnOptions& options = {}) {
  using Result = std::invoke_result_t<const Function&, World&>;
  if constexpr (std::is_void_v<Result>) {
    comm::run_thread_ranks(ranks, options, [&](World& world) { function(world); });
  } else {
    comm::check_thread_ranks(ranks);
    std::vector<std::optional<Result>> made(static_cast<std::size_t>(ranks));
    comm::run_thread_ranks(ranks, options, [&](World& world) {
      made[static_cast<std::size_t>(world.rank())].emplace(function(world));
    });
    std::vector<Result> results;
    for (auto& result : made) results.push_back(std::move(*result));
    return results;
  }
}

}  // namespace trestle
