// Memory: nothing leaks, running out of it says what would help, and what is predicted is true.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <regex>

#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using support::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr int classes = 5;

at::Tensor images(std::int64_t count) {
  torch::manual_seed(2);
  return torch::randn({count, 3, 32, 32});
}
at::Tensor labels(std::int64_t count) {
  torch::manual_seed(3);
  return torch::randint(classes, {count});
}

// conv, norm, relu three times, with a pool before the third, then a classifier: 12 layers. Cut
// behind the pool little travels, so that how long a message waits for a slow neighbour, which
// differs from run to run, does not show in the peaks.
nn::Layers conv_net(int channels = 16) {
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
  net.add("out", torch::nn::Linear(4 * channels, classes));
  return net;
}

PipelineOptions two_stages(Recompute recompute, const std::string& schedule = "gpipe",
                           Bytes budget = 0) {
  return {.devices = virtual_devices(2, budget),
          .balance = {7, 5},
          .micro_batches = 4,
          .schedule = schedule,
          .recompute = recompute};
}

std::vector<Bytes> in_use() {
  std::vector<Bytes> result;
  for (const auto& device : virtual_devices(2))
    result.push_back(memory_usage(device.torch).current);
  return result;
}

constexpr Recompute all_modes[] = {Recompute::Never, Recompute::ExceptLast, Recompute::Always};

// Runs `step` a hundred times and looks at the meters.
void expect_no_leak(const std::function<void()>& step) {
  for (int i = 0; i < 5; ++i) step();
  const auto early = in_use();
  for (int i = 5; i < 100; ++i) step();
  EXPECT_EQ(early, in_use());
}

TEST(Leaks, NoneOverAHundredSteps) {
  for (const Recompute recompute : all_modes) {
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      SCOPED_TRACE(text(schedule, ", recompute ", schedule::to_string(recompute)));
      Pipeline pipeline(conv_net(4), two_stages(recompute, schedule));
      expect_no_leak([&] {
        pipeline.zero_grad();
        pipeline.step(images(8), labels(8), nn::cross_entropy());
      });
    }
  }
}

TEST(Leaks, NoneInForwardsWithAndWithoutABackward) {
  for (const Recompute recompute : all_modes) {
    Pipeline pipeline(conv_net(4), two_stages(recompute));
    expect_no_leak([&] {
      pipeline.zero_grad();
      pipeline.forward(images(8));
      pipeline.forward(images(8).requires_grad_()).sum().backward();
      pipeline.evaluate(images(8));
    });
  }
}

TEST(Leaks, NoneAfterExceptions) {
  const auto net = [](const std::shared_ptr<int>& calls) {
    nn::Layers layers;
    layers.add("net", conv_net(4));
    layers.add("trap", [calls](at::Tensor x) {
      if (++*calls % 6 == 0) throw std::runtime_error("every sixth time");
      return x;
    });
    return layers;
  };
  const auto before = in_use();
  {
    auto calls = std::make_shared<int>(0);
    auto options = two_stages(Recompute::ExceptLast, "1f1b");
    options.balance = {7, 6};
    Pipeline pipeline(net(calls), options);
    int failures = 0;
    const auto step = [&] {
      *calls = failures % 2 * 4;  // in an early micro-batch, and in a late one
      ++failures;
      EXPECT_THROW(pipeline.step(images(8), labels(8), nn::cross_entropy()), std::runtime_error);
      pipeline.zero_grad();
    };
    expect_no_leak(step);
  }
  EXPECT_EQ(before, in_use());
}

TEST(OutOfMemory, NamesThePlaceInAForward) {
  Pipeline pipeline(conv_net(), two_stages(Recompute::Never));
  const auto devices = virtual_devices(2);
  const Bytes budget = memory_usage(devices[0].torch).current + (200 << 10);
  set_budget(devices[0].torch, budget);
  const std::string message = message_of<c10::OutOfMemoryError>(
      [&] { pipeline.step(images(16), labels(16), nn::cross_entropy()); });
  virtual_devices(2);
  EXPECT_THAT(message, AllOf(HasSubstr("virtual:0 is out of memory in stage 0, micro-batch "),
                             HasSubstr(", layer '"), HasSubstr("asked "), HasSubstr("KiB, "),
                             HasSubstr(" of " + format_bytes(budget) + " in use")));
  EXPECT_THAT(message, HasSubstr("More micro-batches, recompute = \"always\""));
}

// Leaves the device just enough for the forward of stage 1, not for its backward.
TEST(OutOfMemory, NamesTheLayerInABackward) {
  Pipeline pipeline(conv_net(), two_stages(Recompute::Never));
  const auto devices = virtual_devices(2);
  const at::Tensor output = pipeline.forward(images(16));
  const at::Tensor gradient = torch::ones_like(output);
  set_budget(devices[0].torch, memory_usage(devices[0].torch).current + (20 << 10));
  const std::string message = message_of<c10::OutOfMemoryError>([&] { output.backward(gradient); });
  virtual_devices(2);
  EXPECT_THAT(message, AllOf(HasSubstr("in stage 0, micro-batch 3"), HasSubstr("asked "),
                             HasSubstr(" in use")));
  pipeline.zero_grad();
  const at::Tensor second = pipeline.forward(images(16));
  set_budget(devices[1].torch, memory_usage(devices[1].torch).current + (20 << 10));
  const std::string other =
      message_of<c10::OutOfMemoryError>([&] { second.backward(torch::ones_like(gradient)); });
  virtual_devices(2);
  EXPECT_THAT(other,
              AllOf(HasSubstr("in stage 1, micro-batch 3"), HasSubstr("backward of layer '")));
}

TEST(OutOfMemory, TheHintNamesWhatReallyFits) {
  const at::Tensor x = images(32);
  const at::Tensor y = labels(32);
  const nn::Loss loss = nn::cross_entropy();
  auto options = two_stages(Recompute::Never);
  options.micro_batches = 2;
  Bytes most = 0;
  Bytes least = 0;
  {
    Pipeline pipeline(conv_net(), options);
    const auto costs = pipeline.profile({x}, y, loss);
    most = pipeline.predict(costs).peak_bytes[0];
    least = costs.stages[0].persistent;
  }
  bool one = false;
  bool both = false;
  for (const double share : {0.5, 0.75, 0.9}) {  // of what it wants
    const Bytes budget = least + static_cast<Bytes>(share * static_cast<double>(most - least));
    SCOPED_TRACE(format_bytes(budget));
    const auto try_with = [&](int micro_batches, Recompute recompute) {
      auto other = options;
      other.devices[0].budget = budget;
      other.micro_batches = micro_batches;
      other.recompute = recompute;
      Pipeline pipeline(conv_net(), other);
      pipeline.profile({x}, y, loss);
      std::string message = message_of<c10::OutOfMemoryError>([&] { pipeline.step(x, y, loss); });
      virtual_devices(2);
      return message;
    };
    const std::string message = try_with(2, Recompute::Never);
    ASSERT_THAT(message, HasSubstr("It would fit with "));
    std::smatch found;
    if (std::regex_search(message, found, std::regex("always\" and micro_batches = ([0-9]+)"))) {
      both = true;
      EXPECT_EQ(try_with(std::stoi(found[1]), Recompute::Always), "") << message;
      continue;
    }
    if (message.find("recompute = \"always\"") != std::string::npos) {
      one = true;
      EXPECT_EQ(try_with(2, Recompute::Always), "") << message;
    }
    if (std::regex_search(message, found, std::regex("micro_batches = ([0-9]+)"))) {
      EXPECT_EQ(try_with(std::stoi(found[1]), Recompute::Never), "") << message;
    }
  }
  EXPECT_TRUE(one);   // the generous budgets
  EXPECT_TRUE(both);  // the tightest
}

TEST(Profile, LeavesEverythingAsItWas) {
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

// The share by which the prediction misses the measured peak, for each device.
std::vector<double> misses(Recompute recompute, const std::string& schedule,
                           const std::string& what) {
  const at::Tensor x = images(32);
  const at::Tensor y = labels(32);
  Pipeline pipeline(conv_net(), two_stages(recompute, schedule));
  const auto costs = pipeline.profile({x}, y, nn::cross_entropy());
  const auto predicted = pipeline.predict(costs).peak_bytes;
  pipeline.step(x, y, nn::cross_entropy());
  const auto devices = virtual_devices(2);
  for (const auto& device : devices) reset_peak_memory(device.torch);
  pipeline.step(x, y, nn::cross_entropy());  // its gradients add up: they are there all the time
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

TEST(Profile, PredictsThePeaks) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : all_modes) {
      const std::string what = text(schedule, ", recompute ", schedule::to_string(recompute));
      SCOPED_TRACE(what);
      for (const double miss : misses(recompute, schedule, what)) EXPECT_LT(std::abs(miss), 0.10);
    }
  }
}

}  // namespace
}  // namespace trestle
