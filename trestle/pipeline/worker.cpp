#include "trestle/pipeline/worker.h"

#include "trestle/device/threads.h"
#include "trestle/device/vector_math.h"

namespace trestle::pipeline {

Worker::Worker(int threads) : thread_([this, threads] { loop(threads); }) {}

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Worker::run(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Worker::loop(int threads) {
  warm_up_vector_math();
  set_worker_threads(threads);
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace trestle::pipeline
