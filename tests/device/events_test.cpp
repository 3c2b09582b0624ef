#include <gtest/gtest.h>

#include "support.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/transfer.h"

namespace trestle {
namespace {

using testing::on_virtual;
using testing::same_bits;
using testing::virtual_device;

TEST(EventTest, DoesNothingOnSynchronousDevices) {
  for (const at::Device device : {at::Device(at::kCPU), virtual_device(0)}) {
    device::StreamEvent event;
    EXPECT_TRUE(event.done());
    event.wait(device);
    event.record(device);
    EXPECT_TRUE(event.done());
    event.wait(virtual_device(1));
    event.wait(at::kCPU);
    event.record(virtual_device(1));
    const device::StreamEvent moved = std::move(event);
    EXPECT_TRUE(moved.done());
    device::synchronize(device);
  }
}

TEST(EventTest, LibtorchsOwnEventsWorkOnVirtualDevices) {
  const c10::Stream stream(c10::Stream::DEFAULT, virtual_device(1));
  c10::Event event(at::kPrivateUse1);
  event.record(stream);
  event.block(stream);
  EXPECT_TRUE(event.query());
}

TEST(TransferTest, TheSameDeviceGivesTheSameTensor) {
  const auto tensor = torch::ones({3}, on_virtual(0));
  EXPECT_TRUE(to_device(tensor, virtual_device(0)).is_same(tensor));
  EXPECT_FALSE(to_device(at::Tensor(), virtual_device(0)).defined());
}

TEST(TransferTest, CopiesAndPassesGradientsBack) {
  const auto leaf = torch::randn({3, 4}).requires_grad_();
  const auto there = to_device(leaf.t(), virtual_device(1));
  EXPECT_EQ(there.device(), virtual_device(1));
  EXPECT_TRUE(same_bits(there, leaf.t()));
  to_device(there * 2, at::kCPU).sum().backward();
  EXPECT_EQ(leaf.grad().sum().item<float>(), 24);
}

TEST(TransferTest, IntegersAndMemoryFormatsArrive) {
  const auto labels =
      torch::randint(0, 9, {2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto there = to_device(labels, virtual_device(0));
  EXPECT_TRUE(there.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(same_bits(there, labels));
}

}  // namespace
}  // namespace trestle
