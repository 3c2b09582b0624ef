#include "trestle/comm/backends/gloo_backend.h"

#include <sched.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace trestle::comm {
namespace {

// Threads that start meanwhile do not interrupt a running one when they wake. Gloo's thread calls
// epoll_wait() without a pause while another thread holds the lock of its connection. A send wakes
// the thread of the other rank, which would interrupt the sender with its lock. Steps of ranks that
// compute on all cores took up to 1.7 times as long (docs/benchmarks.md, "Gloo's threads").
class ThreadsDoNotInterrupt {
 public:
  ThreadsDoNotInterrupt() : before_(sched_getscheduler(0)) {
    if (before_ == SCHED_OTHER) set(SCHED_BATCH);
  }
  ~ThreadsDoNotInterrupt() {
    if (before_ == SCHED_OTHER) set(SCHED_OTHER);
  }
  ThreadsDoNotInterrupt(const ThreadsDoNotInterrupt&) = delete;
  ThreadsDoNotInterrupt& operator=(const ThreadsDoNotInterrupt&) = delete;

 private:
  // It needs no permission. If it fails, the threads are only slower.
  static void set(int policy) {
    const sched_param none{};
    sched_setscheduler(0, policy, &none);
  }

  int before_;
};

}  // namespace

struct GlooDevice::Impl {
  std::shared_ptr<::gloo::transport::Device> device;
};

// GLOO_SOCKET_IFNAME is Gloo's own variable, for machines with several networks.
GlooDevice::GlooDevice(const std::string& address) : impl_(std::make_unique<Impl>()) {
  const ThreadsDoNotInterrupt threads;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  impl_->device =
      interface && *interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                              : c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

GlooDevice::~GlooDevice() = default;

c10::intrusive_ptr<c10d::Backend> GlooDevice::connect(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds deadline) const {
  auto options = c10d::ProcessGroupGloo::Options::create(deadline);
  options->devices.push_back(impl_->device);
  options->threads = 1;  // one collective at a time
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace trestle::comm
