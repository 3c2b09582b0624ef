#include "trestle/comm/job_thread.h"

#include <optional>
#include <utility>

#include "trestle/comm/sigpipe_guard.h"
#include "trestle/device/threads.h"

namespace trestle::comm {

JobThread::JobThread(std::function<void()> set_up)
    : set_up_(std::move(set_up)), thread_([this] { run(); }) {}

JobThread::~JobThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void JobThread::add(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

bool JobThread::drain(std::chrono::steady_clock::time_point end) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, end, [&] { return jobs_.empty(); });
}

void JobThread::run() {
  std::optional<SigpipeGuard> sigpipe_guard;
  if (set_up_) {
    set_up_();
  } else {
    set_own_threads(1);
    sigpipe_guard.emplace();
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    {
      const auto job = std::move(jobs_.front());
      lock.unlock();
      job();
    }  // destroys the job before drain() can count it as done
    lock.lock();
    jobs_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace trestle::comm
