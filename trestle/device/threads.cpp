#include "trestle/device/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual/backend.h"

namespace trestle {

int core_count() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 0)
    return CPU_COUNT(&cores);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int threads_of_each(int workers) {
  return std::max(1, std::min(core_count(), at::get_num_threads()) / workers);
}

int most_threads() { return std::max(64, 4 * core_count()); }

namespace {

void check_count(int count) {
  if (count < 1 || count > most_threads())
    throw UsageError(text("cannot run an operator on ", count, " threads"),
                     {.hint = text("Give 1 to ", most_threads(), "; this process has ",
                                   core_count(), " cores.")});
}

// A thread's first parallel operator applies the process's default over any earlier setting. These
// calls get that over with: for libtorch's own operators, and for loops in this program, which has
// a copy of that state.
void take_default() {
  at::get_num_threads();
  at::internal::lazy_init_num_threads();
}

}  // namespace

void set_worker_threads(int count) {
  check_count(count);
  take_default();
  at::set_num_threads(count);
}

// libtorch's own setter also changes the default of threads that start later, so a number for one
// action would leak to them. This sets the thread's own numbers: OpenMP's, and MKL's if libtorch
// was linked with it.
void set_own_threads(int count) {
  using SetThreads = void(int);
  static auto* const set_openmp =
      reinterpret_cast<SetThreads*>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  static auto* const set_mkl =
      reinterpret_cast<SetThreads*>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
  take_default();
  if (!set_openmp) return at::set_num_threads(count);
  set_openmp(count);
  if (set_mkl) set_mkl(count);
}

DeviceThreads::DeviceThreads(at::Device device, int count) : device_(device) {
  check_count(count);
  if (virt::is_virtual(device)) {
    auto& threads = virt::threads_of(device.index());
    const std::lock_guard lock(threads.mutex);
    ++threads.scopes;
    before_ = threads.count.exchange(count);
  } else if (device.is_cpu()) {
    before_ = at::get_num_threads();
    set_own_threads(count);
  }
}

DeviceThreads::~DeviceThreads() {
  if (virt::is_virtual(device_)) {
    // Two pipelines may use a device at the same time, and end in any order: the last one removes
    // the device's number.
    auto& threads = virt::threads_of(device_.index());
    const std::lock_guard lock(threads.mutex);
    threads.count = --threads.scopes == 0 ? 0 : before_;
  } else if (device_.is_cpu()) {
    set_own_threads(before_);
  }
}

}  // namespace trestle
