#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace trestle::comm {

// A thread that runs jobs one after another, in the order of add(). It starts with the first job.
// The destructor waits until all are done.
class JobThread {
 public:
  JobThread() = default;
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // A job must not throw.
  void add(std::function<void()> job);

  // Waits until all jobs are done, at most until `end`; returns whether they are.
  bool drain(std::chrono::steady_clock::time_point end);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // the first one is running
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trestle::comm
