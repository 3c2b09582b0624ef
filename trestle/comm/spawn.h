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
  int threads = 0;  // of one operator in each rank; 0 = the cores divided by the ranks
};

namespace comm {
void check_thread_ranks(int ranks);  // UsageError for a number that cannot be
void run_thread_ranks(int ranks, const SpawnOptions& options,
                      const std::function<void(World&)>& function);
}  // namespace comm

// Runs `function(world)` on `ranks` ranks that are threads of this process, and returns what each of them
// returned, in order (nothing where it returns nothing). If one throws, the others' waits end, all
// threads are joined, and the first failure is thrown, with its type, naming its rank.
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
