#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "trestle/comm/processes/log_silencer.h"

namespace trestle::comm {

// Runs a libtorch call that may never return, such as connecting to a port whose owner accepts and
// never answers. It runs in a thread of its own, which is detached at the timeout: `call` must own
// everything that it uses. Returns the call's result, or nothing at the timeout; throws what it
// threw. `give_up` is polled ten times a second; when it returns true, the wait ends early.
template <class Call>
auto call_with_timeout(std::chrono::milliseconds timeout, Call call,
                       const std::function<bool()>& give_up = {})
    -> std::optional<decltype(call())> {
  using Result = decltype(call());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  std::thread([task] {
    const LogSilencer silencer;
    (*task)();
  }).detach();
  const auto end = std::chrono::steady_clock::now() + timeout;
  constexpr std::chrono::milliseconds poll_interval{100};
  for (auto left = timeout;
       result.wait_for(std::min(left, poll_interval)) != std::future_status::ready;) {
    left = std::chrono::duration_cast<std::chrono::milliseconds>(end -
                                                                 std::chrono::steady_clock::now());
    if (left.count() <= 0 || (give_up && give_up())) return {};
  }
  return result.get();
}

}  // namespace trestle::comm
