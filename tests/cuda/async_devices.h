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

// Devices that run asynchronously, with several streams: GPUs if the test program gets --cuda,
// otherwise virtual devices with streams, which report missing waits. The same tests run on both.
namespace trestle::support {

// Whether these are GPUs. main() sets it.
bool on_cuda();

// The i-th device; with fewer GPUs some stand for several.
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

// Some tenths of a second of work for a GPU's current stream, so that a read without a wait comes
// too early. Does nothing on a virtual device, which records the order instead.
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
