#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trestle::data_parallel {

// One thread for each replica but the first, which the caller's thread runs. The threads stay
// alive, and so do their operators' own threads and caches. One run() at a time.
class ReplicaThreads {
 public:
  // `threads`: the number of intra-op threads of each replica.
  ReplicaThreads(std::size_t replicas, int threads);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Runs job(0) in this thread and job(1) to job(count - 1) in the other threads, and waits for
  // all. Then rethrows the failure with the lowest number, if there is one.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);

 private:
  void loop(std::size_t replica);
  void call(std::size_t replica);

  const int threads_each_;
  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  const std::function<void(std::size_t)>* job_ = nullptr;
  std::vector<bool> waiting_;  // whether this replica's thread has yet to begin
  std::size_t open_ = 0;       // jobs of the other threads that have not ended
  bool stop_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;  // last, so that they start after all other members exist
};

}  // namespace trestle::data_parallel
