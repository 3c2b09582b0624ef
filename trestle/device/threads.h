#pragma once

#include <c10/core/Device.h>

// The number of threads that one operator uses. libtorch keeps that number for each thread.
namespace trestle {

// Number of cores this process may run on (its affinity mask), at least 1.
int core_count();

// The threads of one operator for each of `workers` threads that compute at the same time: the
// calling thread's own number, which OMP_NUM_THREADS or its rank's share of the machine may limit,
// and at most core_count(), divided by `workers`; at least 1.
int threads_of_each(int workers);

// The largest accepted number of threads of one operator. More threads than this on these cores
// only wait for each other, and thousands stop a machine.
int most_threads();

// Sets the intra-op threads of the calling thread, and the default for threads that start later.
// The devices' backward threads take that default once, at the first backward. Costs about 35 ns,
// so a worker can change it for each action. Throws UsageError for count < 1 and for more than
// most_threads().
void set_worker_threads(int count);

// The same for the calling thread alone: the default for later threads does not change.
void set_own_threads(int count);

// At its end it sets the worker threads to those at its begin, at most core_count(): measurements
// and the installation of virtual devices set them for good.
class WorkerThreadsAsBefore {
 public:
  WorkerThreadsAsBefore() : before_(threads_of_each(1)) {}
  ~WorkerThreadsAsBefore() { set_worker_threads(before_); }
  WorkerThreadsAsBefore(const WorkerThreadsAsBefore&) = delete;
  WorkerThreadsAsBefore& operator=(const WorkerThreadsAsBefore&) = delete;

 private:
  int before_;
};

// While it lives, operators on `device` use `count` threads in every calling thread, including the
// device's own backward thread, which set_worker_threads() does not reach. Costs next to nothing.
// It works for virtual devices; on the CPU it sets the calling thread's number, on other devices
// nothing. Scopes nest; if two threads each have one, the later one applies while both live.
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
