#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "trestle/comm/quiet_log.h"

namespace trestle::comm {

// Calls that libtorch may not come back from, such as connecting to a port whose owner accepts and
// says nothing: done in a thread of their own, which is left behind when the time is up. So `call` may
// hold nothing but what is its own. Returns what it returned, or nothing; throws what it threw.
// `gives_up` is asked several times a second whether there is still something to wait for.
template <class Call>
auto within(std::chrono::milliseconds time, Call call, const std::function<bool()>& gives_up = {})
    -> std::optional<decltype(call())> {
  using Result = decltype(call());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  std::thread([task] {
    const QuietLog quiet;
    (*task)();
  }).detach();
  const auto end = std::chrono::steady_clock::now() + time;
  constexpr std::chrono::milliseconds between_questions{100};
  for (auto left = time;
       result.wait_for(std::min(left, between_questions)) != std::future_status::ready;) {
    left = std::chrono::duration_cast<std::chrono::milliseconds>(end -
                                                                 std::chrono::steady_clock::now());
    if (left.count() <= 0 || (gives_up && gives_up())) return {};
  }
  return result.get();
}

}  // namespace trestle::comm
