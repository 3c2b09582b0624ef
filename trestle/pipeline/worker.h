#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace trestle::pipeline {

// A thread that runs one job after the other; a rank keeps its own for the life of the pipeline, so
// that allocator caches and thread settings last. Jobs must not throw.
class Worker {
 public:
  // `threads`: intra-op threads of every operator that the worker runs.
  explicit Worker(int threads);
  ~Worker();  // finishes the jobs that were given, then joins
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run(std::function<void()> job);

 private:
  void loop(int threads);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace trestle::pipeline
