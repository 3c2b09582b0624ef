#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trestle::sharding {

// A thread for each replica but the first, which the caller's thread runs. They stay, so that their
// operators' own threads and caches do. One run() at a time.
class ReplicaThreads {
 public:
  // `threads`: intra-op threads of every operator of a replica.
  ReplicaThreads(std::size_t replicas, int threads);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // job(0) here and job(1) to job(count - 1) beside it. Returns when all have ended; then throws
  // the failure of the lowest number, if there is one.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);

 private:
  void loop(std::size_t replica);
  void call(std::size_t replica);

  const int threads_each_;
  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  const std::function<void(std::size_t)>* job_ = nullptr;
  std::vector<bool> waiting_;  // has this replica's thread still to begin?
  std::size_t open_ = 0;       // jobs of other threads that have not ended
  bool stop_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;  // last: they start when everything else is there
};

}  // namespace trestle::sharding
