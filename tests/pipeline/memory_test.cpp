// Memory: steps do not leak, and an out-of-memory error suggests settings that fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/pipeline/conv_net.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"

namespace trestle {
namespace {

using namespace support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs `step` 25 times and compares the meters, which count every byte: what a step or every
// second one keeps shows.
void expect_no_leak(const std::function<void()>& step) {
  for (int i = 0; i < 5; ++i) step();
  const auto early = in_use();
  for (int i = 5; i < 25; ++i) step();
  EXPECT_EQ(early, in_use());
}

TEST(Leaks, NoneOverManySteps) {
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

TEST(Leaks, NoneInForwardsWithAndWithoutBackward) {
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
      *calls = failures % 2 * 4;  // in an early micro-batch, then in a late one
      ++failures;
      EXPECT_THROW(pipeline.step(images(8), labels(8), nn::cross_entropy()), std::runtime_error);
      pipeline.zero_grad();
    };
    expect_no_leak(step);
  }
  EXPECT_EQ(before, in_use());
}

TEST(OutOfMemory, NamesStageAndLayerInForward) {
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

// No advice of training where nothing is trained, nor for weights.
TEST(OutOfMemory, AdvisesOnEvaluationsAndWeightsByThemselves) {
  Pipeline pipeline(conv_net(), two_stages(Recompute::Never));
  const auto devices = virtual_devices(2);
  set_budget(devices[0].torch, memory_usage(devices[0].torch).current + (20 << 10));
  const std::string evaluation =
      message_of<c10::OutOfMemoryError>([&] { pipeline.evaluate(images(16)); });
  nn::Layers wide;
  wide.add("wide", torch::nn::Linear(512, 512));
  wide.add("out", torch::nn::Linear(512, 2));
  const std::string weights = message_of<c10::OutOfMemoryError>([&] {
    Pipeline other(wide, {.devices = devices, .balance = {1, 1}});
  });
  virtual_devices(2);
  EXPECT_THAT(evaluation, AllOf(HasSubstr("a smaller batch"), Not(HasSubstr("recompute"))));
  EXPECT_THAT(weights, AllOf(HasSubstr("the weights of layer 'wide'"), HasSubstr("asked 1.0 MiB"),
                             Not(HasSubstr("recompute"))));
}

// Leaves stage 1's device enough memory for the forward but not for the backward.
TEST(OutOfMemory, NamesStageAndLayerInBackward) {
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

TEST(OutOfMemory, HintNamesSettingsThatFit) {
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
  for (const double share : {0.5, 0.75, 0.9}) {  // of the predicted need
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
      EXPECT_EQ(try_with(std::stoi(found[1]), Recompute::Always), "nothing was thrown") << message;
      continue;
    }
    if (message.find("recompute = \"always\"") != std::string::npos) {
      one = true;
      EXPECT_EQ(try_with(2, Recompute::Always), "nothing was thrown") << message;
    }
    if (std::regex_search(message, found, std::regex("micro_batches = ([0-9]+)"))) {
      EXPECT_EQ(try_with(std::stoi(found[1]), Recompute::Never), "nothing was thrown") << message;
    }
  }
  EXPECT_TRUE(one);   // the generous budgets
  EXPECT_TRUE(both);  // the smallest budget
}

TEST(OutOfMemory, HintCountsAllStagesOfDevice) {
  const at::Tensor x = images(32);
  const at::Tensor y = labels(32);
  Bytes most = 0;
  {
    Pipeline pipeline(conv_net(), on_one_device("gpipe", 0));
    most = pipeline.predict(pipeline.profile({x}, y, nn::cross_entropy())).device_peak_bytes[0];
  }
  const auto run = [&](Recompute recompute, int micro_batches) {
    auto options = on_one_device("gpipe", most * 3 / 5);
    options.recompute = recompute;
    options.micro_batches = micro_batches;
    Pipeline pipeline(conv_net(), options);
    pipeline.profile({x}, y, nn::cross_entropy());
    std::string message =
        message_of<c10::OutOfMemoryError>([&] { pipeline.step(x, y, nn::cross_entropy()); });
    virtual_devices(2);
    return message;
  };
  const std::string message = run(Recompute::Never, 4);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      message, found,
      std::regex("fit with (recompute = \"always\")?( and )?(micro_batches = ([0-9]+))?")))
      << message;
  EXPECT_EQ(run(found[1].matched ? Recompute::Always : Recompute::Never,
                found[4].matched ? std::stoi(found[4]) : 4),
            "nothing was thrown")
      << message;
}

TEST(OutOfMemory, HintAppliesToUsersTable) {
  const at::Tensor x = images(32);
  const at::Tensor y = labels(32);
  auto options = two_stages(Recompute::Never);
  options.plan.table = schedule::generate("1f1b", {.stages = 2, .micro_batches = 4});
  Bytes most = 0;
  {
    Pipeline pipeline(conv_net(), options);
    most = pipeline.predict(pipeline.profile({x}, y, nn::cross_entropy())).device_peak_bytes[0];
  }
  const auto run = [&](Recompute recompute) {
    auto other = options;
    other.devices[0].budget = most * 3 / 4;
    other.recompute = recompute;
    Pipeline pipeline(conv_net(), other);
    pipeline.profile({x}, y, nn::cross_entropy());
    std::string message =
        message_of<c10::OutOfMemoryError>([&] { pipeline.step(x, y, nn::cross_entropy()); });
    virtual_devices(2);
    return message;
  };
  const std::string message = run(Recompute::Never);
  EXPECT_THAT(message, HasSubstr("It would fit with recompute = \"always\" ("));
  EXPECT_THAT(message, Not(HasSubstr("micro_batches")));  // which would run another table
  EXPECT_EQ(run(Recompute::Always), "nothing was thrown");
}

struct ShiftImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::zeros({256 * 128}));
  at::Tensor forward(const at::Tensor& x) { return x + weight.view({256, 128}); }
};
TORCH_MODULE(Shift);

// A parameter's first gradient is a view of the layer's, so the stage copies it after the backward.
TEST(OutOfMemory, IsThrownUnderEveryBudgetOfABackward) {
  const auto devices = virtual_devices(1);
  nn::Layers net;
  net.add("linear", torch::nn::Linear(128, 128));
  net.add("shift", Shift());
  Pipeline pipeline(net, {.devices = {devices[0]}, .micro_batches = 1});
  int thrown = 0;
  for (Bytes room = 64 << 10; room <= 4096 << 10; room += 32 << 10) {
    pipeline.zero_grad();
    set_budget(devices[0].torch, memory_usage(devices[0].torch).current + room);
    try {
      pipeline.step(torch::ones({256, 128}), torch::ones({256, 128}), nn::mean_squared_error());
    } catch (const c10::OutOfMemoryError&) {
      ++thrown;
    }
  }
  virtual_devices(1);
  EXPECT_GT(thrown, 5);
  EXPECT_LT(thrown, 126);
}

}  // namespace
}  // namespace trestle
