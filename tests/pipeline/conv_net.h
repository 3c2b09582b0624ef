#pragma once

#include "tests/pipeline/support.h"
#include "trestle/device/virtual_device.h"

// A small net on two virtual devices, for tests of memory.
namespace trestle::support {

inline constexpr int conv_classes = 5;

inline at::Tensor images(std::int64_t count) {
  torch::manual_seed(2);
  return torch::randn({count, 3, 32, 32});
}
inline at::Tensor labels(std::int64_t count) {
  torch::manual_seed(3);
  return torch::randint(conv_classes, {count});
}

// Three times conv, norm, relu, with a pool before the third, then a classifier: 12 layers. A cut
// after the pool sends little, so that message waits, which vary, do not show in the peaks.
inline nn::Layers conv_net(int channels = 16) {
  torch::manual_seed(4);
  nn::Layers net;
  const int sizes[] = {3, channels, channels, 4 * channels};
  for (int i = 0; i < 3; ++i) {
    const std::string number = std::to_string(i);
    if (i == 2) net.add("pool", torch::nn::MaxPool2d(4));
    net.add("conv" + number,
            torch::nn::Conv2d(torch::nn::Conv2dOptions(sizes[i], sizes[i + 1], 3).padding(1)));
    net.add("norm" + number, torch::nn::BatchNorm2d(sizes[i + 1]));
    net.add("relu" + number, torch::nn::ReLU());
  }
  net.add("mean", [](at::Tensor x) { return x.mean({2, 3}); });
  net.add("out", torch::nn::Linear(4 * channels, conv_classes));
  return net;
}

inline PipelineOptions two_stages(Recompute recompute, const std::string& schedule = "gpipe",
                                  Bytes budget = 0) {
  return {.devices = virtual_devices(2, budget),
          .balance = {7, 5},
          .micro_batches = 4,
          .schedule = schedule,
          .recompute = recompute};
}

inline std::vector<Bytes> in_use() {
  std::vector<Bytes> result;
  for (const auto& device : virtual_devices(2))
    result.push_back(memory_usage(device.torch).current);
  return result;
}

inline constexpr Recompute all_modes[] = {Recompute::Never, Recompute::ExceptLast,
                                          Recompute::Always};

inline PipelineOptions on_one_device(const std::string& schedule, Bytes budget) {
  auto options = two_stages(Recompute::Never, schedule);
  options.devices[0].budget = budget;
  options.devices[1] = options.devices[0];
  return options;
}

}  // namespace trestle::support
