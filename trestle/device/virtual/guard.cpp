#include "trestle/device/virtual/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/stream_order.h"
#include "trestle/device/virtual_device.h"

namespace trestle::virt {
namespace {

std::atomic<int>& installed_count() {
  static std::atomic<int> count{0};
  return count;
}

thread_local int current = 0;

// Operators have finished when they return, so every stream is the default one and every event has
// happened, unless a StreamCheck models streams and events (stream_order.h).
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
    return current_stream(device.has_index() ? device.index() : current);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return next_pool_stream(device.has_index() ? device.index() : current);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override { host_waits(stream); }
  void synchronizeDevice(c10::DeviceIndex device) const override { host_waits_for_device(device); }

  // Without a check no event is created: any pointer but null means that it was recorded.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (is_real(*event)) destroy_event(*event);
    *event = checks_streams() ? record_event(stream) : &no_order;
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (is_real(event)) stream_waits(stream, event);
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override {
    if (is_real(event)) host_waits(event);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (is_real(event)) destroy_event(event);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return is_real(first) && is_real(second) ? 1e3 * seconds_between(first, second) : 0;
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    keep_for_stream(untagged(memory.get()), stream);
  }

 private:
  static inline char no_order = 0;
  static bool is_real(void* event) { return event && event != &no_order; }
};

}  // namespace

int device_count() { return installed_count().load(std::memory_order_relaxed); }
void set_device_count(int count) { installed_count() = count; }

ThreadsOfDevice& threads_of(int device) {
  static std::array<ThreadsOfDevice, most_virtual_devices> threads{};
  return threads[static_cast<std::size_t>(device)];
}

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
