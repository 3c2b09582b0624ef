// Copies and waits after slow work on a stream; torchgpipe's tests of its copy and stream
// functions.
#include "tests/cuda/async_devices.h"
#include "trestle/device/clock.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/transfer.h"

namespace trestle {
namespace {

using support::async_device;
using support::AsyncDevices;
using support::keep_busy;

class Copies : public AsyncDevices {
 protected:
  // Computed after slow work.
  static at::Tensor late(at::Device device) {
    keep_busy(device);
    return torch::arange(1000, torch::TensorOptions().device(device).dtype(at::kFloat)) + 1;
  }
  static double sum(const at::Tensor& tensor) { return tensor.sum().item<double>(); }
  static constexpr double expected = 500500;
  device::CopyStreams copies;
};

TEST_F(Copies, T73HostToDeviceWaitsForSlowStream) {
  const at::Device device = async_device(0);
  keep_busy(device);
  const at::Tensor there = copy_beside(torch::arange(1000) + 1, device, copies);
  EXPECT_EQ(there.device(), device);
  EXPECT_EQ(sum(there), expected);
}

TEST_F(Copies, T74DeviceToHostWaitsForSlowStream) {
  const at::Tensor here = copy_beside(late(async_device(0)), at::kCPU, copies);
  EXPECT_TRUE(here.is_cpu());
  EXPECT_EQ(sum(here), expected);
}

TEST_F(Copies, T75DeviceToDeviceWaitsForSlowStream) {
  const at::Tensor there = copy_beside(late(async_device(0)), async_device(1), copies);
  EXPECT_EQ(sum(there), expected);
}

TEST_F(Copies, T75GradientsWaitForSlowStream) {
  const at::Tensor x = late(async_device(0)).requires_grad_();
  at::Tensor y = to_device(x, async_device(1));
  keep_busy(async_device(1));
  (y * y).sum().backward();
  EXPECT_EQ(sum(x.grad()), 2 * expected);
}

TEST_F(Copies, T154DeviceWaitsForHost) {
  device::StreamEvent none;
  none.record(at::kCPU);
  none.wait(async_device(0));
  EXPECT_EQ(sum(late(async_device(0))), expected);
}

TEST_F(Copies, T155HostWaitsForDevice) {
  const at::Device device = async_device(0);
  const at::Tensor x = late(device);
  device::StreamEvent ready;
  ready.record(device);
  ready.wait(at::kCPU);
  EXPECT_TRUE(ready.done());
  const device::StreamScope other({support::another_stream(device)});
  EXPECT_EQ(sum(x), expected);  // without another wait
}

TEST_F(Copies, T156StreamWaitsForStream) {
  const at::Device device = async_device(0);
  const at::Tensor x = late(device);
  device::StreamEvent ready;
  ready.record(device);
  const c10::Stream stream = support::another_stream(device);
  ready.wait(stream);
  const device::StreamScope other({stream});
  EXPECT_EQ(sum(x), expected);
}

// The memory's first user, on another stream, is slow. A second tensor of the same size must not
// reuse the memory before. Returns the sum that the first user reads.
double read_while_let_go(at::Tensor x) {
  const at::Device device = x.device();
  device::StreamEvent ready;
  ready.record(device);
  const c10::Stream stream = support::another_stream(device);
  ready.wait(stream);
  at::Tensor y;
  {
    const device::StreamScope other({stream});
    keep_busy(device);
    y = x * 1;
    keep_for_current_stream(x);
  }
  x = at::Tensor();
  const auto overwritten = torch::zeros({1000}, torch::TensorOptions().device(device));
  const device::StreamScope other({stream});
  return y.sum().item<double>();
}

TEST_F(Copies, T158MemoryInUseIsNotReused) {
  EXPECT_EQ(read_while_let_go(late(async_device(0))), expected);
}

TEST_F(Copies, T159MemoryInUseByViewIsNotReused) {
  EXPECT_EQ(read_while_let_go(late(async_device(0)).narrow(0, 500, 500)), 375250);
}

// Two messages in sequence: the first one's memory is freed while its copy may be in flight.
TEST_F(Copies, ManyMessagesInSequenceKeepTheirData) {
  for (int i = 0; i < 20; ++i) {
    const at::Tensor there = copy_beside(late(async_device(0)) * i, async_device(1), copies);
    const at::Tensor back = copy_beside(there + 1, async_device(0), copies);
    EXPECT_EQ(sum(back), expected * i + 1000);
  }
}

// A mark is requested at once and completes when the work does.
TEST_F(Copies, ClockMeasuresEndOfWork) {
  const at::Device device = async_device(0);
  device::Clock clock;
  const auto begin = clock.mark(device);
  const at::Tensor x = late(device);
  const auto end = clock.mark(device);
  const double asked = clock.now();
  EXPECT_GE(end.seconds(), begin.seconds());
  EXPECT_LE(end.seconds(), clock.now() + 1e-3);
  if (device.is_cuda()) {
    EXPECT_GT(end.seconds(), asked) << "the work takes longer than its request";
  }
  EXPECT_EQ(sum(x), expected);
}

}  // namespace
}  // namespace trestle
