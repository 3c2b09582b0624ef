// Measurements of stages, and predictions from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "tests/pipeline/conv_net.h"
#include "tests/support/oracle.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using namespace support;

TEST(Profile, LeavesModelAndStepUnchanged) {
  for (const auto& devices :
       {virtual_devices(2), std::vector<Device>{cpu_device(), cpu_device()}}) {
    const nn::Layers net = conv_net();
    auto options = two_stages(Recompute::ExceptLast);
    options.devices = devices;
    Pipeline pipeline(net, options);
    pipeline.step(images(8), labels(8), nn::cross_entropy());
    const auto parameters = oracle::to_map(net.named_parameters());
    const auto gradients = oracle::gradients_of(net.named_parameters());
    const auto buffers = oracle::to_map(net.named_buffers());
    const auto held = in_use();
    const auto number = pipeline.step_number();
    pipeline.profile({images(8)}, labels(8), nn::cross_entropy());
    EXPECT_EQ(oracle::difference(parameters, oracle::to_map(net.named_parameters())), 0);
    EXPECT_EQ(oracle::difference(gradients, oracle::gradients_of(net.named_parameters())), 0);
    EXPECT_EQ(oracle::difference(buffers, oracle::to_map(net.named_buffers())), 0);
    EXPECT_EQ(held, in_use());
    EXPECT_EQ(number, pipeline.step_number());
    pipeline.zero_grad();
    pipeline.profile({images(8)}, labels(8), nn::cross_entropy());
    EXPECT_FALSE(net.parameters()[0].grad().defined());
  }
}

// The relative error of the predicted peak on each device.
std::vector<double> misses(Recompute recompute, const std::string& schedule,
                           const std::string& what) {
  const at::Tensor x = images(32);
  const at::Tensor y = labels(32);
  Pipeline pipeline(conv_net(), two_stages(recompute, schedule));
  const auto costs = pipeline.profile({x}, y, nn::cross_entropy());
  const auto predicted = pipeline.predict(costs).device_peak_bytes;
  pipeline.step(x, y, nn::cross_entropy());
  const auto devices = virtual_devices(2);
  for (const auto& device : devices) reset_peak_memory(device.torch);
  pipeline.step(x, y, nn::cross_entropy());  // accumulates: gradients exist throughout
  std::vector<double> result;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Bytes measured = memory_usage(devices[i].torch).peak;
    result.push_back(static_cast<double>(predicted[i]) / static_cast<double>(measured) - 1);
    std::cout << text(what, ", device ", i, ": predicted ", format_bytes(predicted[i]),
                      ", measured ", format_bytes(measured), ", off by ",
                      std::round(result.back() * 1000) / 10, " %\n");
  }
  return result;
}

TEST(Profile, PredictsPeaks) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : all_modes) {
      const std::string what = text(schedule, ", recompute ", schedule::to_string(recompute));
      SCOPED_TRACE(what);
      for (const double miss : misses(recompute, schedule, what)) EXPECT_LT(std::abs(miss), 0.10);
    }
  }
}

TEST(Profile, PredictsCommonPeakOfStagesOnOneDevice) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    SCOPED_TRACE(schedule);
    Pipeline pipeline(conv_net(), on_one_device(schedule, 0));
    const auto costs = pipeline.profile({images(32)}, labels(32), nn::cross_entropy());
    const auto timeline = pipeline.predict(costs);
    ASSERT_EQ(timeline.device_peak_bytes.size(), 1u);
    EXPECT_GT(timeline.device_peak_bytes[0], timeline.peak_bytes[0]);
    const Device device = virtual_devices(2)[0];
    pipeline.step(images(32), labels(32), nn::cross_entropy());
    reset_peak_memory(device.torch);
    pipeline.step(images(32), labels(32), nn::cross_entropy());
    const double measured = static_cast<double>(memory_usage(device.torch).peak);
    const double predicted = static_cast<double>(timeline.device_peak_bytes[0]);
    std::cout << "one device, " << schedule << ": predicted " << predicted << ", measured "
              << measured << "\n";
    EXPECT_LE(measured, 1.05 * predicted);
    EXPECT_GE(measured, 0.80 * predicted);
  }
}

TEST(Profile, PredictsSequentialExecutionOnPlainCpu) {
  PipelineOptions options{
      .devices = {cpu_device(), cpu_device()}, .balance = {7, 5}, .micro_batches = 4};
  Pipeline pipeline(conv_net(4), options);
  const auto costs = pipeline.profile({images(8)}, labels(8), nn::cross_entropy());
  const auto timeline = pipeline.predict(costs);
  // one of two ranks works at a time
  EXPECT_NEAR(schedule::idle_share_of_makespan(timeline), 0.5, 1e-9);
}

TEST(Profile, PredictsMicroBatchCountOfSmallBatch) {
  auto options = two_stages(Recompute::Never);
  options.micro_batches = 64;
  Pipeline pipeline(conv_net(4), options);
  const auto costs = pipeline.profile({images(3)}, labels(3), nn::cross_entropy());
  EXPECT_EQ(pipeline.predict(costs).micro_batches, 3);
  EXPECT_EQ(pipeline.step(images(3), labels(3), nn::cross_entropy()).micro_batches, 3);
  EXPECT_EQ(pipeline.predict(costs, 5).micro_batches, 5);
}

}  // namespace
}  // namespace trestle
