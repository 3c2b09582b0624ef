#include "trestle/device/spin_guard.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "trestle/device/threads.h"

namespace trestle {

namespace {

using namespace std::chrono_literals;

bool spins() {
  return dlsym(RTLD_DEFAULT, "GOMP_parallel") != nullptr &&
         std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr;
}

// How often the system took a processor from a thread of this process that was computing.
std::int64_t processors_taken() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

// GNU OpenMP spins shortly while the process has more of its threads than processors (its manual,
// GOMP_SPINCOUNT). This makes more of them: a team without work, which ends with the object.
class IdleTeam {
 public:
  IdleTeam() {
    std::unique_lock lock(mutex_);
    thread_ = std::thread([this] { wait(); });
    changed_.wait(lock, [this] { return has_team_; });
  }
  ~IdleTeam() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  IdleTeam(const IdleTeam&) = delete;
  IdleTeam& operator=(const IdleTeam&) = delete;

 private:
  void wait() {
    const int count = core_count() + 1;
    set_own_threads(count);
    at::parallel_for(0, count, 1, [](std::int64_t, std::int64_t) {});
    std::unique_lock lock(mutex_);
    has_team_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return ends_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_team_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace

class SpinGuard::Watch {
 public:
  Watch() : thread_([this] { watch(); }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool is_active() const { return active_; }

 private:
  void watch() {
    sigset_t all;  // signals are for the threads that know what to do
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    constexpr auto period = 50ms;
    constexpr double begins_at = 30, ends_at = 10;  // times per second and core
    constexpr auto calm = 2s;
    std::unique_ptr<IdleTeam> team;
    auto last = std::chrono::steady_clock::now(), last_busy = last;
    std::int64_t taken = processors_taken();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, period, [this] { return ends_; })) {
      const auto now = std::chrono::steady_clock::now();
      const std::int64_t taken_now = processors_taken();
      const double rate = static_cast<double>(taken_now - taken) /
                          std::chrono::duration<double>(now - last).count() / core_count();
      last = now;
      taken = taken_now;
      if (rate > ends_at) last_busy = now;
      if (!team && rate > begins_at)
        team = std::make_unique<IdleTeam>();
      else if (team && now - last_busy > calm)
        team.reset();
      active_ = team != nullptr;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::atomic<bool> active_ = false;
  std::thread thread_;
};

SpinGuard::SpinGuard() {
  if (spins()) watch_ = std::make_unique<Watch>();
}

SpinGuard::~SpinGuard() = default;

bool SpinGuard::is_active() const { return watch_ && watch_->is_active(); }

}  // namespace trestle
