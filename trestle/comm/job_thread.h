#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace trestle::comm {

// A thread that does one job after the other, in the order in which they came. It starts with the
// first one, and the destructor waits until all are done.
class JobThread {
 public:
  JobThread() = default;
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // A job must not throw.
  void add(std::function<void()> job);

  // Whether all jobs were done before `end`.
  bool drain(std::chrono::steady_clock::time_point end);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // the first one is being done
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trestle::comm
