#include "trestle/device/spin_guard.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>

#include "trestle/device/threads.h"

namespace trestle {

namespace {

using namespace std::chrono_literals;

// Seconds that the threads of this process have waited for a processor while they could compute:
// the second number of schedstat, in nanoseconds. Nothing where the system does not count them.
std::optional<double> seconds_of_waiting() {
  std::error_code gone;
  double all = 0;
  bool any = false;
  for (std::filesystem::directory_iterator task("/proc/self/task", gone), end; !gone && task != end;
       task.increment(gone)) {
    std::ifstream in(task->path() / "schedstat");
    double computed = 0, waited = 0;
    if (!(in >> computed >> waited)) continue;  // the thread has ended
    all += waited / 1e9;
    any = true;
  }
  return any ? std::optional(all) : std::nullopt;
}

bool spins() {
  return dlsym(RTLD_DEFAULT, "GOMP_parallel") != nullptr &&
         std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr &&
         seconds_of_waiting().has_value();
}

// GNU OpenMP spins shortly while the process has more of its threads than processors (its manual,
// GOMP_SPINCOUNT). This makes more of them: a team without work, which ends with the object.
class IdleTeam {
 public:
  IdleTeam() : thread_([this](const std::stop_token& ends) { wait(ends); }) {
    has_team_.wait(false);
  }

 private:
  void wait(const std::stop_token& ends) {
    const int count = core_count() + 1;
    set_own_threads(count);
    at::parallel_for(0, count, 1, [](std::int64_t, std::int64_t) {});
    has_team_ = true;
    has_team_.notify_all();
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait(lock, ends, [] { return false; });
  }

  std::atomic<bool> has_team_ = false;
  std::jthread thread_;
};

}  // namespace

class SpinGuard::Watch {
 public:
  Watch() : thread_([this](const std::stop_token& ends) { watch(ends); }) {}

  bool is_active() const { return active_; }

 private:
  void watch(const std::stop_token& ends) {
    sigset_t all;  // signals are for the threads that know what to do
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    constexpr auto period = 200ms;
    constexpr double begins_at = 0.15, ends_at = 0.05;  // seconds of waiting per second and core
    constexpr auto calm = 2s;
    bool was_busy = false;  // one period alone may be a moment's disturbance
    std::unique_ptr<IdleTeam> team;
    auto last = std::chrono::steady_clock::now(), last_busy = last;
    double waited = seconds_of_waiting().value_or(0);
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any pause;
    while (!pause.wait_for(lock, ends, period, [] { return false; }) && !ends.stop_requested()) {
      const auto now = std::chrono::steady_clock::now();
      const double waited_now = seconds_of_waiting().value_or(0);
      const double share =
          (waited_now - waited) / std::chrono::duration<double>(now - last).count() / core_count();
      last = now;
      waited = waited_now;
      if (share > ends_at) last_busy = now;
      const bool is_busy = share > begins_at;
      if (!team && is_busy && was_busy)
        team = std::make_unique<IdleTeam>();
      else if (team && now - last_busy > calm)
        team.reset();
      was_busy = is_busy;
      active_ = team != nullptr;
    }
  }

  std::atomic<bool> active_ = false;
  std::jthread thread_;
};

SpinGuard::SpinGuard() {
  if (spins()) watch_ = std::make_unique<Watch>();
}

SpinGuard::~SpinGuard() = default;

bool SpinGuard::is_active() const { return watch_ && watch_->is_active(); }

}  // namespace trestle
