// A pipeline inside a layer of another pipeline.
#include <gtest/gtest.h>

#include "tests/pipeline/small_nets.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using small::expect_equal;
using small::gradients_of;
using small::input;
using small::linear;
using small::micro_batches;
using small::target;

struct InnerImpl : torch::nn::Module {
  explicit InnerImpl(std::vector<Device> devices) {
    nn::Layers net;
    const auto inner = linear(3);
    register_module("inner", inner);
    net.add("linear", inner);
    net.add("drop", torch::nn::Dropout(0.5));
    pipeline = std::make_unique<Pipeline>(
        net, PipelineOptions{.devices = std::move(devices), .balance = {1, 1}});
  }
  at::Tensor forward(at::Tensor x) { return pipeline->forward(x).to(x.device()); }
  std::unique_ptr<Pipeline> pipeline;
};
TORCH_MODULE(Inner);

TEST(NestedPipeline, DrawsSameNumbersWhenRecomputed) {
  const auto run = [](std::vector<Device> outer, std::vector<Device> inner, Recompute recompute,
                      const std::string& schedule = "gpipe") {
    const support::WatchDog dog("a pipeline inside a layer");
    nn::Layers net;
    net.add("first", linear(1));
    const Inner layer(std::move(inner));
    net.add("inner", layer);
    net.add("last", linear(2));
    Pipeline pipeline(net, {.devices = std::move(outer),
                            .balance = {1, 2},
                            .micro_batches = micro_batches,
                            .schedule = schedule,
                            .recompute = recompute,
                            .plan = {.backward_order = BackwardOrder::Forward}});
    // The outer pipeline moved the layer to its own device, but the inner pipeline's layers belong
    // on others.
    for (int step = 0; step < 2; ++step) {
      pipeline.zero_grad();
      pipeline.step(input(), target(), nn::cross_entropy());
    }
    EXPECT_EQ(layer->pipeline->step_number(), 0);
    return gradients_of(net);
  };
  const std::vector<Device> cpu(2, cpu_device());
  const auto expected = run(cpu, cpu, Recompute::Never);
  expect_equal(expected, run(cpu, cpu, Recompute::Always));
  const std::vector<Device> one(2, virtual_devices(2)[1]);
  expect_equal(expected, run({virtual_devices(2)[0], one[0]}, one, Recompute::Never));
  expect_equal(expected, run({virtual_devices(2)[0], one[0]}, one, Recompute::Always));
  // The inner pipeline's backward is a part of I, whose engine computes chosen gradients.
  for (const std::string schedule : {"1f1b", "zb_h1", "zb_h2"}) {
    expect_equal(expected, run(cpu, cpu, Recompute::Never, schedule));
    expect_equal(expected, run({virtual_devices(2)[0], one[0]}, one, Recompute::Always, schedule));
  }
}

}  // namespace
}  // namespace trestle
