// The order that streams and events define: a missing wait is reported, a present one is not. These
// are plain c10 streams and events; the same code orders a GPU.
#include "trestle/device/stream_check.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support.h"
#include "trestle/base/error.h"
#include "trestle/device/stream.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/transfer.h"

namespace trestle {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::on_virtual;
using testing::same_bits;
using testing::virtual_device;

c10::Stream pool_stream(int device) {
  return c10::impl::VirtualGuardImpl(at::kPrivateUse1)
      .getStreamFromGlobalPool(virtual_device(device), false);
}

// a + 1, computed on `other` after the work queued in a's own stream.
at::Tensor one_more_on(const c10::Stream& other, const at::Tensor& a) {
  device::StreamEvent ready;
  ready.record(a.device());
  ready.wait(other);
  const device::StreamScope scope({other});
  return a + 1;
}

class StreamCheckTest : public ::testing::Test {
 protected:
  void SetUp() override { virtual_device(0); }  // installs them
};

TEST_F(StreamCheckTest, OneStreamIsInOrder) {
  const StreamCheck check;
  const auto a = torch::ones({4}, on_virtual(0));
  auto b = a + 1;
  b.mul_(a);
  EXPECT_EQ(b.sum().item<float>(), 8);
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST_F(StreamCheckTest, FindsAReadThatDoesNotWaitForTheWrite) {
  const StreamCheck check;
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  const device::StreamScope other({pool_stream(0)});
  const auto b = a + 1;
  EXPECT_THAT(check.findings(), ElementsAre(HasSubstr("reads memory that aten::mul")));
}

TEST_F(StreamCheckTest, FindsAWriteThatDoesNotWaitForTheRead) {
  const StreamCheck check;
  auto a = torch::ones({4}, on_virtual(0));
  const c10::Stream other = pool_stream(0);
  device::StreamEvent ready;
  ready.record(virtual_device(0));
  ready.wait(other);
  {
    const device::StreamScope scope({other});
    EXPECT_EQ((a + 1).sizes(), a.sizes());
    keep_for_current_stream(a);
  }
  EXPECT_THAT(check.findings(), IsEmpty());
  a.zero_();
  EXPECT_THAT(check.findings(), ElementsAre(HasSubstr("aten::add on stream")));
}

TEST_F(StreamCheckTest, AnEventOrdersThem) {
  const StreamCheck check;
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  c10::Event ready(at::kPrivateUse1);
  ready.record(c10::Stream(c10::Stream::DEFAULT, virtual_device(0)));
  const c10::Stream other = pool_stream(0);
  ready.block(other);
  at::Tensor b;
  {
    const device::StreamScope scope({other});
    b = a + 1;
    keep_for_current_stream(a);
  }
  device::StreamEvent done;
  {
    const device::StreamScope scope({other});
    done.record(virtual_device(0));
  }
  done.wait(virtual_device(0));
  EXPECT_EQ((b + a).sum().item<float>(), 20);
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST_F(StreamCheckTest, AnEventFromBeforeTheWriteDoesNotOrderThem) {
  const StreamCheck check;
  device::StreamEvent too_early;
  too_early.record(virtual_device(0));
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  const c10::Stream other = pool_stream(0);
  too_early.wait(other);
  const device::StreamScope scope({other});
  EXPECT_EQ((a + 1).numel(), 4);
  EXPECT_EQ(check.findings().size(), 1U);
}

TEST_F(StreamCheckTest, AWaitOfTheHostOrdersThemToo) {
  const StreamCheck check;
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  device::synchronize(virtual_device(0));
  {
    const device::StreamScope scope({pool_stream(0)});
    EXPECT_EQ((a + 1).sum().item<float>(), 12);  // item() waits for this stream
  }
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST_F(StreamCheckTest, FindsMemoryFreedWhileAnotherStreamUsesIt) {
  const StreamCheck check;
  auto a = torch::ones({4}, on_virtual(0));
  const at::Tensor b = one_more_on(pool_stream(0), a);
  a = at::Tensor();
  EXPECT_THAT(check.findings(), ElementsAre(HasSubstr("is freed while aten::add")));
}

TEST_F(StreamCheckTest, ACopyBetweenDevicesOrdersTheCurrentStreamsOfBoth) {
  const StreamCheck check;
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  auto b = to_device(a, virtual_device(1)) + 1;
  const auto c = to_device(b, virtual_device(0)) + a;
  EXPECT_EQ(c.sum().item<float>(), 20);
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST_F(StreamCheckTest, AnOverlappedCopyIsInOrder) {
  const StreamCheck check;
  device::CopyStreams copies;
  auto a = torch::ones({4}, on_virtual(0)) * 2;
  auto b = copy_beside(a, virtual_device(1), copies);
  a = at::Tensor();  // while the copy may be in flight
  b.add_(1);
  auto c = copy_beside(b, at::kCPU, copies);
  EXPECT_EQ(c.sum().item<float>(), 12);
  b = copy_beside(c, virtual_device(2), copies) * 2;
  EXPECT_EQ(b.sum().item<float>(), 24);
  EXPECT_THAT(check.findings(), IsEmpty());
}

// This keeps a GPU busy: a consumer of its tensor must not delay the producer's stream.
TEST_F(StreamCheckTest, TheProducerDoesNotWaitForAnOverlappedCopy) {
  const StreamCheck check;
  device::CopyStreams copies;
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  auto b = copy_beside(a, virtual_device(1), copies) + 1;
  const device::StreamScope in_the_producers_stream(device::current_streams({a.device()}));
  device::StreamEvent producer;
  producer.record(a.device());
  const c10::Stream third = pool_stream(1);
  producer.wait(third);  // `third` now follows the producer's stream, but not the write to b
  const device::StreamScope scope({third});
  EXPECT_EQ((b + 1).numel(), 4);
  EXPECT_EQ(check.findings().size(), 1U);
}

TEST_F(StreamCheckTest, TheNextCheckStartsAfresh) {
  device::StreamEvent of_first_check;
  {
    const StreamCheck check;
    auto a = torch::ones({4}, on_virtual(0));
    for (int i = 0; i < 8; ++i) a = a * 2;
    of_first_check.record(virtual_device(0));
    const device::StreamScope scope({pool_stream(0)});
    EXPECT_EQ((a + 1).numel(), 4);
    EXPECT_EQ(check.findings().size(), 1U);
  }
  const StreamCheck check;
  const auto a = torch::ones({4}, on_virtual(0)) * 2;
  const c10::Stream other = pool_stream(0);
  of_first_check.wait(other);  // older than a, although it has seen more operators
  EXPECT_THAT(check.findings(), IsEmpty());
  const device::StreamScope scope({other});
  EXPECT_EQ((a + 1).numel(), 4);
  EXPECT_EQ(check.findings().size(), 1U);
}

TEST_F(StreamCheckTest, RecordStreamKeepsMemory) {
  const StreamCheck check;
  auto a = torch::ones({4}, on_virtual(0));
  const c10::Stream other = pool_stream(0);
  const at::Tensor b = one_more_on(other, a);
  a.record_stream(other);
  a = at::Tensor();
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST_F(StreamCheckTest, NonBlockingCopiesToTheHostWork) {
  const auto a = torch::ones({4}, on_virtual(0)) * 3;
  EXPECT_EQ(a.to(at::kCPU, /*non_blocking=*/true).sum().item<float>(), 12);
  EXPECT_EQ(torch::ones({4}).pin_memory().sum().item<float>(), 4);
}

TEST_F(StreamCheckTest, ABackwardOnAnotherDeviceIsInOrder) {
  const StreamCheck check;
  const auto weight = torch::ones({4}, on_virtual(0)).requires_grad_();
  const auto y = to_device(weight * 3, virtual_device(1));
  (y * y).sum().backward();
  EXPECT_EQ(weight.grad().sum().item<float>(), 72);
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST_F(StreamCheckTest, ASecondCheckIsRejectedAndNumbersStayTheSame) {
  const auto a = torch::ones({3}, on_virtual(0));
  {
    const StreamCheck check;
    EXPECT_THROW(StreamCheck(), StateError);
    EXPECT_TRUE(same_bits(a * 3, torch::full({3}, 3.F)));
  }
  const StreamCheck again;
  EXPECT_THAT(again.findings(), IsEmpty());
}

}  // namespace
}  // namespace trestle
