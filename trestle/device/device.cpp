#include "trestle/device/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/cuda_count.h"
#include "trestle/device/keyed_generator.h"
#include "trestle/device/virtual/allocator.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

c10::DeviceIndex index_of(at::Device device) {
  return device.has_index() ? device.index()
                            : c10::impl::getDeviceGuardImpl(device.type())->getDevice().index();
}

}  // namespace

// torch knows the name "virtual" only after the installation.
std::string device_name(at::Device device) {
  if (!device.is_privateuseone()) return device.str();
  return device.has_index() ? text("virtual:", static_cast<int>(device.index())) : "virtual";
}

std::string to_string(const Device& device) { return device_name(device.torch); }

Device cpu_device() {
  prepare_keyed_random();  // before worker threads run
  return {};
}

std::vector<Device> virtual_devices(int count, Bytes budget) {
  if (count < 1)
    throw UsageError(text("cannot make ", count, " virtual devices"),
                     {.hint = "Request 1 or more."});
  install_virtual_devices({.count = count});
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    devices.push_back({virt::nth_device(i), budget});
    set_budget(devices.back().torch, budget);
  }
  return devices;
}

int cuda_count() {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return 0;
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
}

std::vector<Device> cuda_devices(int count) {
  if (count < 1)
    throw UsageError(text("cannot use ", count, " CUDA devices"), {.hint = "Request 1 or more."});
  if (virtual_devices_installed()) {
    throw StateError("this process has virtual devices and therefore cannot use CUDA",
                     {.hint = "Use one kind of device in a process."});
  }
  if (count > cuda_count()) {
    throw UsageError(
        text(count, " CUDA devices were requested, but this process sees ", cuda_count()),
        {.hint = text("Use the devices virtual:", count, " to try the same plan on the CPU.")});
  }
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back({at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i)), 0});
  return devices;
}

namespace {

// libtorch keeps one peak for each GPU. Reading the peak of a short span resets it, so the earlier
// value is kept here for the peak since the last reset by the user.
struct EarlierPeaks {
  std::mutex mutex;
  std::map<int, Bytes> bytes;
};

EarlierPeaks& earlier_peaks() {
  static auto* peaks = new EarlierPeaks;  // outlives every thread
  return *peaks;
}

}  // namespace

// Virtual and CUDA devices report through the same interface of libtorch.
MemoryUsage memory_usage(at::Device device) {
  if (device.is_cpu()) return {};
  auto* allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) return {};
  const auto bytes = allocator->getDeviceStats(index_of(device)).allocated_bytes[0];
  if (virt::is_virtual(device))
    return {.current = bytes.current, .peak = bytes.peak, .budget = budget(device)};
  const std::lock_guard lock(earlier_peaks().mutex);
  const Bytes earlier = earlier_peaks().bytes[index_of(device)];
  return {.current = bytes.current, .peak = std::max<Bytes>(bytes.peak, earlier), .budget = 0};
}

void reset_peak_memory(at::Device device) {
  if (device.is_cpu()) return;
  auto* allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) return;
  allocator->resetPeakStats(index_of(device));
  const std::lock_guard lock(earlier_peaks().mutex);
  earlier_peaks().bytes.erase(index_of(device));
}

Bytes take_recent_peak(at::Device device) {
  if (device.is_cpu()) return 0;
  if (virt::is_virtual(device)) return virt::take_recent_peak(index_of(device));
  auto* allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) return 0;
  const std::lock_guard lock(earlier_peaks().mutex);
  const Bytes peak = allocator->getDeviceStats(index_of(device)).allocated_bytes[0].peak;
  Bytes& earlier = earlier_peaks().bytes[index_of(device)];
  earlier = std::max(earlier, peak);
  allocator->resetPeakStats(index_of(device));
  return peak;
}

}  // namespace trestle
