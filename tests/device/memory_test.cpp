// Budgets, out-of-memory errors and meters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"
#include "trestle/base/error.h"
#include "trestle/device/layer_scope.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using namespace literals;
using ::testing::HasSubstr;
using testing::on_virtual;
using testing::virtual_device;

// Device 2 with a budget, removed at the end.
class BudgetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_budget(device_, 1_MiB);
    before_ = memory_usage(device_).current;
  }
  void TearDown() override {
    EXPECT_EQ(memory_usage(device_).current, before_) << "something leaked";
    set_budget(device_, 0);
  }
  at::TensorOptions options() const { return at::TensorOptions().device(device_); }

  at::Device device_ = virtual_device(2);
  Bytes before_ = 0;
};

template <class Action>
std::string out_of_memory(Action action) {
  try {
    action();
  } catch (const c10::OutOfMemoryError& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "no c10::OutOfMemoryError";
  return "";
}

TEST_F(BudgetTest, OutOfMemoryReportsDeviceLayerAndBytes) {
  const std::string name = "encoder.down3";
  const LayerScope scope(name);
  const auto held = torch::ones({100, 1000}, options());
  const std::string message = out_of_memory([&] { torch::empty({200, 1000}, options()); });
  EXPECT_THAT(message, HasSubstr("virtual:2 is out of memory: requested 781.2 KiB"));
  EXPECT_THAT(message, HasSubstr("390.6 KiB in use of a budget of 1.0 MiB"));
  EXPECT_THAT(message, HasSubstr("in layer 'encoder.down3'"));
  EXPECT_THAT(message, HasSubstr("recomputation"));
  const at::NoGradGuard no_grad;
  EXPECT_THAT(out_of_memory([&] {
                torch::empty({200, 1000}, options());
              }),
              HasSubstr("Use smaller batches, more devices"));
  const auto report = last_out_of_memory(device_);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->device, device_);
  EXPECT_EQ(report->requested, 800000);
  EXPECT_EQ(report->in_use, before_ + 400000);
  EXPECT_EQ(report->budget, 1_MiB);
  EXPECT_EQ(report->layer, name);
  EXPECT_EQ(report->node, "");
}

// Regression: the message had a peak above the budget.
TEST_F(BudgetTest, NamesNoPeakFromBeforeBudgetWasLowered) {
  set_budget(device_, 8_MiB);
  { const auto large = torch::empty({1000, 1000}, options()); }
  set_budget(device_, 1_MiB);
  const std::string message = out_of_memory([&] { torch::empty({1000, 1000}, options()); });
  EXPECT_THAT(message, HasSubstr("in use of a budget of 1.0 MiB. Use more"));
}

TEST_F(BudgetTest, FailsForTheResultOfAnOperator) {
  const auto input = torch::ones({100, 1300}, options());
  EXPECT_THAT(out_of_memory([&] {
                const auto once = input.exp();
                const auto twice = once * 2;
              }),
              HasSubstr("requested 507.8 KiB"));
}

TEST_F(BudgetTest, FailsForTemporariesInsideAnOperator) {
  const auto input =
      torch::randn({400, 400}, options());  // 640 kB; its decomposition needs several of that size
  out_of_memory([&] { at::linalg_svd(input); });
}

TEST_F(BudgetTest, KeepsItsTypeThroughABackwardOnTheDevicesThread) {
  const auto leaf = torch::ones({100, 800}, options().requires_grad(true));
  const std::string message = out_of_memory([&] { leaf.exp().sin().sum().backward(); });
  const auto report = last_out_of_memory(device_);
  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(report->node, HasSubstr("Backward0"));
  EXPECT_THAT(message, HasSubstr("in the backward of " + report->node));
  EXPECT_EQ(report->layer, "");
}

TEST_F(BudgetTest, NamesTheForwardOperatorByItsSequenceNumber) {
  const auto leaf = torch::ones({100, 800}, options().requires_grad(true));
  const auto first = leaf.exp();
  const auto second = first.sin();
  out_of_memory([&] { second.sum().backward(); });
  const auto report = last_out_of_memory(device_);
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->node_sequence == first.grad_fn()->sequence_nr() ||
              report->node_sequence == second.grad_fn()->sequence_nr() ||
              report->node_sequence == second.grad_fn()->sequence_nr() + 1)
      << report->node << " " << report->node_sequence;
}

TEST_F(BudgetTest, TheDeviceWorksAfterAnOutOfMemoryError) {
  for (int i = 0; i < 20; ++i) out_of_memory([&] { torch::ones({1000, 1000}, options()); });
  EXPECT_EQ(torch::ones({1000}, options()).sum().item<float>(), 1000);
}

TEST_F(BudgetTest, DoesNotLimitOtherDevicesAndTheCpu) {
  EXPECT_EQ(torch::ones({1000, 1000}, on_virtual(3)).sum().item<float>(), 1e6F);
  EXPECT_EQ(torch::ones({1000, 1000}).sum().item<float>(), 1e6F);
}

TEST_F(BudgetTest, ExactlyTheBudgetFits) {
  const auto tensor = torch::empty({(1 << 20) - before_}, options().dtype(torch::kByte));
  EXPECT_EQ(memory_usage(device_).current, 1_MiB);
  out_of_memory([&] { torch::empty({1}, options().dtype(torch::kByte)); });
}

TEST_F(BudgetTest, ABudgetBelowTheBytesInUseFailsTheNextAllocationOnly) {
  const auto tensor = torch::ones({1000}, options());
  set_budget(device_, 16);
  EXPECT_EQ(tensor.cpu().sum().item<float>(), 1000);
  out_of_memory([&] { tensor + 1; });
}

TEST_F(BudgetTest, MemoryUsageHasBudgetAndPeak) {
  reset_peak_memory(device_);
  { const auto tensor = torch::empty({1000}, options()); }
  EXPECT_EQ(memory_usage(device_).budget, 1_MiB);
  EXPECT_EQ(memory_usage(device_).peak, before_ + 4000);
  EXPECT_EQ(memory_usage(device_).current, before_);
  reset_peak_memory(device_);
  EXPECT_EQ(memory_usage(device_).peak, before_);
}

TEST(MemoryTest, TemporariesCountInThePeak) {
  const at::Device device = virtual_device(3);
  const auto input = torch::randn({64, 64}, on_virtual(3));
  reset_peak_memory(device);
  const Bytes before = memory_usage(device).current;
  const auto result = input.t().contiguous();
  EXPECT_GE(memory_usage(device).peak - before, 64 * 64 * 4);
  EXPECT_EQ(memory_usage(device).current - before, 64 * 64 * 4);
}

TEST(MemoryTest, ATrainingStepLeaksNothing) {
  const at::Device device = virtual_device(3);
  const Bytes before = memory_usage(device).current;
  {
    torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::BatchNorm2d(8),
                              torch::nn::ReLU());
    net->to(device);
    Bytes after_first = 0;
    for (int step = 0; step < 5; ++step) {
      net->zero_grad();
      net->forward(torch::randn({2, 3, 8, 8}, on_virtual(3))).sum().backward();
      if (step == 1) after_first = memory_usage(device).current;
    }
    EXPECT_EQ(memory_usage(device).current, after_first);
  }
  EXPECT_EQ(memory_usage(device).current, before);
}

TEST(MemoryTest, TheCpuIsNotMetered) {
  const auto tensor = torch::ones({1000});
  EXPECT_EQ(memory_usage(at::kCPU).current, 0);
  reset_peak_memory(at::kCPU);
}

TEST(MemoryTest, SetBudgetRejectsOtherDevices) {
  virtual_device(0);
  EXPECT_THROW(set_budget(at::kCPU, 1), UsageError);
  EXPECT_THROW(set_budget(at::Device(at::kPrivateUse1, 60), 1), UsageError);
  EXPECT_THROW(set_budget(virtual_device(0), -1), UsageError);
  EXPECT_THROW(budget(at::kCPU), UsageError);
}

TEST(LayerScopeTest, Nests) {
  EXPECT_STREQ(current_layer(), "");
  const std::string outer = "outer", inner = "inner";
  {
    const LayerScope first(outer);
    {
      const LayerScope second(inner);
      EXPECT_STREQ(current_layer(), "inner");
    }
    EXPECT_STREQ(current_layer(), "outer");
  }
  EXPECT_STREQ(current_layer(), "");
}

}  // namespace
}  // namespace trestle
