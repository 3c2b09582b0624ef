// Transfers of tensors between ranks, and the order of events on their devices.
#include "trestle/pipeline/transport/channel.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/device/stream_check.h"

namespace trestle::pipeline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const at::Device producer(at::kPrivateUse1, 0);
const at::Device consumer(at::kPrivateUse1, 1);

at::Tensor made_by_the_producer() { return torch::ones({2}, producer) + 1; }

TEST(Channel, ConsumerWaitsForItsInput) {
  const StreamCheck check;
  device::CopyStreams copies;
  Channel channel;
  EXPECT_FALSE(channel.full());
  channel.put({{.value = made_by_the_producer(), .wants_gradient = true}}, producer);
  EXPECT_TRUE(channel.full());
  const Message taken = channel.take(consumer, copies);
  EXPECT_FALSE(channel.full());
  EXPECT_EQ(taken[0].value.device(), consumer);
  EXPECT_EQ(taken[0].value.sum().item<float>(), 4);
  EXPECT_TRUE(taken[0].wants_gradient);
  EXPECT_TRUE(taken[0].owned);
  EXPECT_THAT(check.findings(), IsEmpty());
}

// The consumer does not wait for the producer's work after put().
TEST(Channel, ConsumerWaitsForNothingElse) {
  const StreamCheck check;
  device::CopyStreams copies;
  Channel channel;
  channel.put({{.value = made_by_the_producer()}}, producer);
  const at::Tensor later = made_by_the_producer();
  const Message taken = channel.take(consumer, copies);
  EXPECT_THAT(check.findings(), IsEmpty());
  device::StreamEvent after_the_copy;
  after_the_copy.record(consumer);
  const auto third = c10::impl::VirtualGuardImpl(at::kPrivateUse1)
                         .getStreamFromGlobalPool(producer, /*isHighPriority=*/false);
  after_the_copy.wait(third);
  const device::StreamScope scope({third});
  EXPECT_EQ((later + 1).numel(), 2);
  EXPECT_EQ(check.findings().size(), 1U) << "the consumer waited for `later`";
}

TEST(Channel, ProducersStreamDoesNotWait) {
  const StreamCheck check;
  device::CopyStreams copies;
  Channel channel;
  channel.put({{.value = made_by_the_producer()}}, producer);
  const Message taken = channel.take(consumer, copies);
  const at::Tensor made_later = taken[0].value * 2;
  device::StreamEvent of_the_producer;
  of_the_producer.record(producer);
  const auto third = c10::impl::VirtualGuardImpl(at::kPrivateUse1)
                         .getStreamFromGlobalPool(consumer, /*isHighPriority=*/false);
  of_the_producer.wait(third);
  const device::StreamScope scope({third});
  EXPECT_EQ((taken[0].value + 1).numel(), 2);
  EXPECT_EQ(check.findings().size(), 1U) << "the producer's stream waited for the copy";
}

TEST(Channel, KeepsMemoryUntilCopyHasReadIt) {
  const StreamCheck check;
  device::CopyStreams copies;
  Channel channel;
  // the channel's tensor has no other reference
  channel.put({{.value = made_by_the_producer()}, {}}, producer);
  Message taken = channel.take(consumer, copies);
  EXPECT_FALSE(taken[1].value.defined());
  EXPECT_EQ((taken[0].value + 1).numel(), 2);
  taken.clear();
  EXPECT_THAT(check.findings(), IsEmpty());
}

// Makes the error on purpose, which shows that the checks above can fail.
TEST(Channel, StreamCheckFindsCopyThatDoesNotWait) {
  const StreamCheck check;
  device::CopyStreams copies;
  const at::Tensor value = made_by_the_producer();
  EXPECT_TRUE(copy_beside(value, consumer, device::StreamEvent(), copies).defined());
  ASSERT_EQ(check.findings().size(), 1U);
  EXPECT_THAT(check.findings()[0], HasSubstr("a copy between devices on stream"));
}

TEST(Channel, PassesTensorItselfOnOneDevice) {
  device::CopyStreams copies;
  Channel channel;
  const at::Tensor tensor = torch::ones({2});
  channel.put({{.value = tensor}}, at::kCPU);
  const Message taken = channel.take(at::kCPU, copies);
  EXPECT_TRUE(taken[0].value.is_same(tensor));
  EXPECT_FALSE(taken[0].owned);
}

}  // namespace
}  // namespace trestle::pipeline
