#include "trestle/comm/backends/gloo_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace trestle::comm {

struct GlooDevice::Impl {
  std::shared_ptr<::gloo::transport::Device> device;
};

// GLOO_SOCKET_IFNAME is Gloo's own variable, for machines with several networks.
GlooDevice::GlooDevice(const std::string& address) : impl_(std::make_unique<Impl>()) {
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
