#include "trestle/data_parallel/replica_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "trestle/device/threads.h"
#include "trestle/device/vector_math.h"

namespace trestle::data_parallel {
namespace {

// Gives the caller's thread the same number of intra-op threads while it runs a replica.
class OwnThreads {
 public:
  explicit OwnThreads(int count) : before_(at::get_num_threads()) {
    set_own_threads(std::min(before_, count));
  }
  ~OwnThreads() { set_own_threads(before_); }
  OwnThreads(const OwnThreads&) = delete;
  OwnThreads& operator=(const OwnThreads&) = delete;

 private:
  const int before_;
};

}  // namespace

ReplicaThreads::ReplicaThreads(std::size_t replicas, int threads)
    : threads_each_(threads), waiting_(replicas, false), failures_(replicas) {
  warm_up_vector_math();
  for (std::size_t r = 1; r < replicas; ++r) threads_.emplace_back([this, r] { loop(r); });
}

ReplicaThreads::~ReplicaThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReplicaThreads::call(std::size_t replica) {
  try {
    (*job_)(replica);
  } catch (...) {
    failures_[replica] = std::current_exception();
  }
}

void ReplicaThreads::loop(std::size_t replica) {
  set_own_threads(threads_each_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || waiting_[replica]; });
    if (stop_) return;
    waiting_[replica] = false;
    lock.unlock();
    call(replica);
    lock.lock();
    if (--open_ == 0) ended_.notify_one();
  }
}

void ReplicaThreads::run(std::size_t count, const std::function<void(std::size_t)>& job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    std::fill(failures_.begin(), failures_.end(), nullptr);
    for (std::size_t r = 1; r < count; ++r) waiting_[r] = true;
    open_ = count - 1;
  }
  changed_.notify_all();
  {
    const OwnThreads own(threads_each_);
    call(0);
  }
  std::vector<std::exception_ptr> failures;
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return open_ == 0; });
    job_ = nullptr;
    failures.swap(failures_);
    failures_.resize(failures.size());
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace trestle::data_parallel
