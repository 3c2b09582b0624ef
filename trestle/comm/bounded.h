#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace trestle::comm {

// Calls that libtorch may not come back from, such as connecting to a port whose owner accepts and
// says nothing: done in a thread of their own, which is left behind when the time is up. So `call` may
// hold nothing but what is its own. Returns what it returned, or nothing; throws what it threw.
template <class Call>
auto within(std::chrono::milliseconds time, Call call) -> std::optional<decltype(call())> {
  using Result = decltype(call());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(time) != std::future_status::ready) return {};
  return result.get();
}

}  // namespace trestle::comm
