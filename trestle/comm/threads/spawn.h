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
  int threads = 0;  // per operator in each rank; 0 = number of cores / number of ranks
};

namespace comm {
void check_thread_ranks(int ranks);  // throws UsageError unless it is 1 to 256
void run_thread_ranks(int ranks, const SpawnOptions& options,
                      const std::function<void(World&)>& function);
}  // namespace comm

// Runs `function(world)` on `ranks` ranks that are threads of this process. Returns their results
// in the order of ranks, or void if `function` does. If a rank throws, all other ranks' waits end,
// all threads are joined, and the first exception is rethrown with its type and its rank in the
// message.
//
//   const auto sums = trestle::spawn(4, [](trestle::World& world) {
//     at::Tensor sum = torch::ones({1}) * world.rank();
//     world.group().all_reduce(sum).wait();
//     return sum.item<double>();   // 6 on each
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
