#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/device/stream.h"
#include "trestle/device/stream_check.h"
#include "trestle/device/virtual_device.h"

// Devices that work on their own, one stream beside the other: GPUs where the test program is given
// --cuda, else virtual devices with streams, where an order that is missing is a finding. The same
// tests run on both.
namespace trestle::support {

// Are these GPUs? Set by main().
bool on_cuda();

// The i-th device; on a machine with fewer GPUs some stand for several.
inline at::Device async_device(int i) {
  if (!on_cuda()) return virtual_devices(i + 1).back().torch;
  const int count = static_cast<int>(torch::cuda::device_count());
  return {at::kCUDA, static_cast<at::DeviceIndex>(i % count)};
}

inline std::vector<Device> async_devices(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({async_device(i), 0});
  return devices;
}

inline c10::Stream another_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

// Some tenths of a second of work for a GPU's current stream, so that what does not wait for it
// reads too early. Nothing on a virtual device, whose order is written down instead.
inline void keep_busy(at::Device device) {
  if (!device.is_cuda()) return;
  auto x = torch::ones({4096, 4096}, torch::TensorOptions().device(device)) / 4096;
  for (int i = 0; i < 200; ++i) x = x.mm(x);
}

class AsyncDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (on_cuda()) return;
    install_virtual_devices({.count = 4});
    check_.emplace();
  }
  void TearDown() override {
    if (check_) {
      EXPECT_THAT(check_->findings(), ::testing::IsEmpty());
    }
  }

 private:
  std::optional<StreamCheck> check_;
};

}  // namespace trestle::support
