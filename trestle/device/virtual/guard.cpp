#include "trestle/device/virtual/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "trestle/device/virtual/backend.h"

namespace trestle::virt {
namespace {

std::atomic<int>& installed_count() {
  static std::atomic<int> count{0};
  return count;
}

thread_local int current = 0;

// Operators have finished when they return, so every stream is the default
// one and every event has happened.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return nth_device(current); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    static char recorded;
    *event = &recorded;  // anything but null says that the event was recorded
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0; }
};

}  // namespace

int device_count() { return installed_count().load(std::memory_order_relaxed); }
void set_device_count(int count) { installed_count() = count; }

int current_device() { return current; }

void set_current_device(int index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "virtual:", index,
              " does not exist: there are virtual:0 to virtual:", device_count() - 1);
  current = index;
}

void install_guard() {
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(device_type)].store(new Guard);
}

}  // namespace trestle::virt
