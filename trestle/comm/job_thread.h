#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace trestle::comm {

// A thread that runs jobs one after the other, in the order in which add() received them. The
// destructor runs the jobs that are left and joins the thread.
class JobThread {
 public:
  // For jobs that wait and copy: one intra-op thread, SIGPIPE blocked. The thread starts at the
  // first add().
  JobThread() = default;
  // `set_up` runs first in the new thread, for example to set its number of intra-op threads. The
  // thread starts at once. A worker of a pipeline lives as long as the pipeline, so that its
  // allocator caches and thread settings last.
  explicit JobThread(std::function<void()> set_up);
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // A job must not throw.
  void add(std::function<void()> job);

  // Waits until all jobs are done, or until `end`. Returns whether all are done.
  bool drain(std::chrono::steady_clock::time_point end);

 private:
  void run();

  const std::function<void()> set_up_ = {};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // the first one is running
  bool ends_ = false;
  std::thread thread_;  // last: starts when all other members exist
};

}  // namespace trestle::comm
