// How tensors pass between ranks, and in which order the devices are told so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/pipeline/channel.h"

namespace trestle::pipeline {
namespace {

using testing::ElementsAre;

// Writes down what happens to the events and the copies of a channel.
std::vector<std::string>& journal() {
  static std::vector<std::string> lines;
  return lines;
}

struct WatchedEvent {
  void record(at::Device device) { journal().push_back("record on " + device_name(device)); }
  void wait(at::Device device) { journal().push_back("wait on " + device_name(device)); }
};

// Notes when the last holder lets go of a tensor's memory.
at::Tensor watched_tensor() {
  auto* data = new float[2]{1, 2};
  return torch::from_blob(data, {2}, [](void* memory) {
    journal().push_back("free");
    delete[] static_cast<float*>(memory);
  });
}

struct WatchedCopy {
  at::Tensor operator()(const at::Tensor& tensor, at::Device device) const {
    journal().push_back("read");
    return to_device(tensor, device);
  }
};

TEST(Channel, WaitsBeforeItReadsAndRecordsBeforeItFrees) {
  journal().clear();
  BasicChannel<WatchedEvent, WatchedCopy> channel;
  const at::Device consumer("virtual:1");
  EXPECT_FALSE(channel.full());
  channel.put({{.value = watched_tensor(), .wants_gradient = true}}, at::kCPU);
  EXPECT_TRUE(channel.full());
  const Message taken = channel.take(consumer);
  EXPECT_FALSE(channel.full());
  EXPECT_THAT(journal(), ElementsAre("record on cpu", "wait on virtual:1", "read",
                                     "record on virtual:1", "wait on cpu", "free"));
  EXPECT_EQ(taken[0].value.device(), consumer);
  EXPECT_EQ(taken[0].value.sum().item<float>(), 3);
  EXPECT_TRUE(taken[0].wants_gradient);
  EXPECT_TRUE(taken[0].owned);
}

TEST(Channel, OnOneDeviceTheTensorItselfGoesOver) {
  journal().clear();
  BasicChannel<WatchedEvent, WatchedCopy> channel;
  const at::Tensor tensor = torch::ones({2});
  channel.put({{.value = tensor}}, at::kCPU);
  const Message taken = channel.take(at::kCPU);
  EXPECT_TRUE(taken[0].value.is_same(tensor));
  EXPECT_FALSE(taken[0].owned);
  EXPECT_THAT(journal(), ElementsAre("record on cpu"));
}

TEST(Channel, KeepsTheProducersMemoryUntilItIsTaken) {
  journal().clear();
  BasicChannel<WatchedEvent, WatchedCopy> channel;
  channel.put({{.value = watched_tensor(), .wants_gradient = true}, {}}, at::kCPU);
  EXPECT_THAT(journal(), ElementsAre("record on cpu"));
  EXPECT_FALSE(channel.take(at::Device("virtual:0"))[1].value.defined());
  EXPECT_EQ(journal().back(), "free");
}

}  // namespace
}  // namespace trestle::pipeline
