#pragma once

#include <c10/core/Device.h>

// How many threads one operator uses. libtorch keeps that number per thread.
namespace trestle {

// Cores this process may run on (its affinity mask), at least 1.
int core_count();

// The most threads of one operator that are accepted: more than this many on these cores only wait
// for each other, and thousands stop a machine.
int most_threads();

// Intra-op threads of the calling thread from the next operator on, and the default of threads that
// start later, among them the devices' backward threads, which take it once, at the first backward.
// Costs about 35 ns, so that a worker can change it per action. Throws UsageError for count < 1 and
// for more than most_threads().
void set_worker_threads(int count);

// The same for the calling thread alone: threads that start later keep the default they would have.
void set_own_threads(int count);

// While it lives, operators on `device` use `count` threads, whichever thread asks for them: the
// device's own backward thread too, which set_worker_threads() does not reach. Costs next to
// nothing. For virtual devices; on the CPU it sets the calling thread's number, on others nothing.
// Scopes nest; where two threads have one each, the later one counts while both live.
class DeviceThreads {
 public:
  DeviceThreads(at::Device device, int count);
  ~DeviceThreads();
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

 private:
  at::Device device_;
  int before_ = 0;
};

}  // namespace trestle
