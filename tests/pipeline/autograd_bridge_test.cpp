// A caller's backward through pipeline.forward(), in every nesting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <thread>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using support::chain;
using support::distance;
using support::message_of;
using support::WatchDog;
using ::testing::HasSubstr;

constexpr int width_of_chain = 6, rows_of_batch = 11;

// Four stages, four micro-batches.
Pipeline make_pipeline(const nn::Layers& net, std::vector<Device> devices,
                       Recompute recompute = Recompute::ExceptLast) {
  return Pipeline(net, {.devices = std::move(devices),
                        .balance = {2, 2, 2, 1},
                        .micro_batches = 4,
                        .recompute = recompute});
}

std::vector<Device> spread() { return virtual_devices(4); }
std::vector<Device> reversed() {
  auto devices = virtual_devices(4);
  return {devices.rbegin(), devices.rend()};
}
std::vector<Device> all_on_one() { return std::vector<Device>(4, virtual_devices(4)[2]); }
std::vector<Device> on_cpu() { return std::vector<Device>(4, cpu_device()); }

// A user's layers before and after the pipeline.
struct Around {
  torch::nn::Linear before{width_of_chain, width_of_chain};
  torch::nn::Linear after{width_of_chain, 3};

  Around(at::Device first, at::Device last) {
    torch::manual_seed(9);
    before = torch::nn::Linear(width_of_chain, width_of_chain);
    after = torch::nn::Linear(width_of_chain, 3);
    before->to(first, at::kDouble);
    after->to(last, at::kDouble);
  }
  void zero_grad() {
    before->zero_grad();
    after->zero_grad();
  }
};

std::vector<at::Tensor> gradients(const nn::Layers& net, const Around& around) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : net.parameters()) result.push_back(parameter.grad());
  for (const auto& parameter : around.before->parameters()) result.push_back(parameter.grad());
  for (const auto& parameter : around.after->parameters()) result.push_back(parameter.grad());
  for (auto& gradient : result) {
    if (gradient.defined()) gradient = gradient.cpu().clone();
  }
  return result;
}

void expect_same(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), actual[i].defined()) << i;
    if (!expected[i].defined()) continue;
    EXPECT_LT(distance(expected[i], actual[i]), 1e-10) << i;
  }
}

// The gradients of the plain model on the CPU with the same layers around it.
std::vector<at::Tensor> plain_gradients(const at::Tensor& x, const at::Tensor& y,
                                        bool input_needs_grad) {
  const nn::Layers net = chain(4, width_of_chain);
  Around around(at::kCPU, at::kCPU);
  at::Tensor h = around.before(x);
  if (!input_needs_grad) h = h.detach();
  torch::nn::functional::cross_entropy(around.after(net.forward(h)), y).backward();
  return gradients(net, around);
}

// Runs an action inside the backward of an autograd function, on the device's own thread.
struct Nest : torch::autograd::Function<Nest> {
  static inline std::function<void()> action;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode grad(true);
    action();
    return gradients;
  }
};

void run_nested(at::Device device, const std::function<void()>& action) {
  Nest::action = action;
  const at::Tensor x = torch::ones({}, at::TensorOptions().device(device)).requires_grad_();
  Nest::apply(x).backward();
}

void check(const std::vector<Device>& devices, bool input_needs_grad,
           std::optional<at::Device> nested_on = {}) {
  const WatchDog dog("a caller's backward");
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({rows_of_batch, width_of_chain}, at::kDouble);
  const at::Tensor y = torch::randint(3, {rows_of_batch});
  const auto expected = plain_gradients(x, y, input_needs_grad);
  const nn::Layers net = chain(4, width_of_chain);
  Pipeline pipeline = make_pipeline(net, devices);
  Around around(devices.front().torch, devices.back().torch);
  for (int round = 0; round < 5; ++round) {
    pipeline.zero_grad();
    around.zero_grad();
    at::Tensor h = around.before(x.to(devices.front().torch));
    if (!input_needs_grad) h = h.detach();
    const at::Tensor loss = torch::nn::functional::cross_entropy(around.after(pipeline.forward(h)),
                                                                 y.to(devices.back().torch));
    if (nested_on) {
      run_nested(*nested_on, [&] { loss.backward(); });
    } else {
      loss.backward();
    }
    expect_same(expected, gradients(net, around));
  }
}

TEST(CallersBackward, SupportsLayersAroundPipeline) {
  for (const bool input_needs_grad : {true, false}) {
    check(spread(), input_needs_grad);
    check(reversed(), input_needs_grad);
    check(on_cpu(), input_needs_grad);
  }
}

TEST(CallersBackward, SupportsAllStagesOnOneDevice) {
  check(all_on_one(), true);
  check(all_on_one(), false);
}

TEST(CallersBackward, RunsInsideBackwardOfEachDevice) {
  for (const auto& device : spread()) {
    check(spread(), true, device.torch);
    check(all_on_one(), false, device.torch);
  }
  check(spread(), true, at::kCPU);
  check(on_cpu(), true, at::kCPU);
  check(on_cpu(), true, spread()[0].torch);
}

TEST(CallersBackward, RunsTwoOppositePipelinesInTwoThreads) {
  const WatchDog dog("two opposite pipelines", std::chrono::seconds(100));
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({rows_of_batch, width_of_chain}, at::kDouble);
  const at::Tensor y = torch::randint(3, {rows_of_batch});
  const auto expected = plain_gradients(x, y, true);
  const nn::Layers nets[2] = {chain(4, width_of_chain), chain(4, width_of_chain)};
  std::atomic<int> rounds = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> users;
  for (const int which : {0, 1}) {
    const auto devices = which == 0 ? spread() : reversed();
    auto around = std::make_shared<Around>(devices.front().torch, devices.back().torch);
    auto pipeline = std::make_shared<Pipeline>(make_pipeline(nets[which], devices));
    users.emplace_back([&, which, devices, around, pipeline] {
      for (int round = 0; round < 50; ++round, ++rounds) {
        pipeline->zero_grad();
        around->zero_grad();
        const at::Tensor h = around->before(x.to(devices.front().torch));
        torch::nn::functional::cross_entropy(around->after(pipeline->forward(h)),
                                             y.to(devices.back().torch))
            .backward();
        const auto actual = gradients(nets[which], *around);
        for (std::size_t i = 0; i < expected.size(); ++i)
          wrong += distance(expected[i], actual[i]) < 1e-10 ? 0 : 1;
      }
    });
  }
  for (auto& user : users) user.join();
  EXPECT_EQ(rounds, 100);
  EXPECT_EQ(wrong, 0);
}

// One forward through one pipeline, for tests that differ in what follows.
struct OneForward {
  WatchDog dog{"one forward"};
  nn::Layers net = chain(4, width_of_chain);
  std::optional<Pipeline> pipeline = make_pipeline(net, spread());
  at::Tensor x = torch::ones({rows_of_batch, width_of_chain}, at::kDouble).requires_grad_();
  at::Tensor loss = pipeline->forward(x).square().mean();
};

TEST(CallersBackward, RunsTwoForwardsBeforeTwoBackwards) {
  OneForward a;
  const at::Tensor second = a.pipeline->forward(2 * a.x.detach()).square().mean();
  a.loss.backward();
  second.backward();
  const nn::Layers plain = chain(4, width_of_chain);
  plain.forward(a.x.detach()).square().mean().backward();
  plain.forward(2 * a.x.detach()).square().mean().backward();
  for (std::size_t i = 0; i < plain.parameters().size(); ++i)
    EXPECT_LT(distance(plain.parameters()[i].grad(), a.net.parameters()[i].grad()), 1e-10);
}

TEST(CallersBackward, RunsOneBackwardThroughSumOfTwoForwards) {
  OneForward a;
  (a.loss + a.pipeline->forward(2 * a.x).square().mean()).backward();
  const nn::Layers plain = chain(4, width_of_chain);
  const at::Tensor x = a.x.detach().clone().requires_grad_();
  (plain.forward(x).square().mean() + plain.forward(2 * x).square().mean()).backward();
  EXPECT_LT(distance(x.grad(), a.x.grad()), 1e-10);
}

TEST(CallersBackward, RefusesSecondBackward) {
  OneForward a;
  a.loss.backward({}, /*retain_graph=*/true);
  const at::Tensor before = a.net.parameters()[0].grad().clone();
  EXPECT_THAT(message_of<StateError>([&] { a.loss.backward(); }),
              HasSubstr("a second backward through one pipeline.forward()"));
  EXPECT_EQ(distance(before, a.net.parameters()[0].grad()), 0);
}

TEST(CallersBackward, RefusesAutogradGradAndStillAllowsBackward) {
  OneForward a;
  EXPECT_THAT(message_of<StateError>(
                  [&] { torch::autograd::grad({a.loss}, {a.x}, {}, /*retain_graph=*/true); }),
              HasSubstr("always accumulates into the grad() of all its parameters"));
  a.loss.backward();
  EXPECT_TRUE(a.x.grad().defined());
}

TEST(CallersBackward, RefusesSecondDerivatives) {
  OneForward a;
  EXPECT_THAT(message_of<StateError>(
                  [&] { a.loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); }),
              HasSubstr("cannot be differentiated again"));
}

TEST(CallersBackward, WorksAfterPipelineIsDestroyed) {
  OneForward a;
  a.pipeline.reset();
  a.loss.backward();
  const nn::Layers plain = chain(4, width_of_chain);
  plain.forward(a.x.detach()).square().mean().backward();
  EXPECT_LT(distance(plain.parameters()[0].grad(), a.net.parameters()[0].grad()), 1e-10);
}

TEST(CallersBackward, SumsGradientOfScalarInputOverMicroBatches) {
  const WatchDog dog("scalar input");
  auto make = [] {
    nn::Layers net(2);
    net.add("scale", [](at::Tensor x, at::Tensor by) { return x * by; });
    net.add("rest", chain(2, width_of_chain));
    return net;
  };
  const at::Tensor x = torch::ones({5, width_of_chain}, at::kDouble);
  Pipeline pipeline(make(), {.devices = virtual_devices(2), .balance = {2, 2}, .micro_batches = 3});
  const at::Tensor by = torch::tensor(2.0, at::kDouble).requires_grad_();
  pipeline.forward(nn::Values{x, by})[0].sum().backward();
  const at::Tensor expected = torch::tensor(2.0, at::kDouble).requires_grad_();
  make().forward(nn::Values{x, expected})[0].sum().backward();
  EXPECT_LT(distance(expected.grad(), by.grad()), 1e-10);
}

TEST(CallersBackward, KeepsTypeOfOutOfMemoryError) {
  const auto devices = spread();
  for (int failing = 0; failing < 4; ++failing) {
    for (const bool nested : {false, true}) {
      SCOPED_TRACE(failing);
      const WatchDog dog("out of memory in a backward");
      nn::Layers net = chain(4, width_of_chain);
      Pipeline pipeline = make_pipeline(net, devices, Recompute::Never);
      const at::Tensor x = torch::ones({rows_of_batch, width_of_chain}, at::kDouble);
      const at::Tensor loss = pipeline.forward(x).square().mean();
      const at::Device device = devices[failing].torch;
      if (failing < 3) set_budget(device, memory_usage(device).current + 1);
      std::string message;
      auto act = [&] { message = message_of<c10::OutOfMemoryError>([&] { loss.backward(); }); };
      // the loss is on this device too: fail inside the pipeline, not in the loss
      if (failing == 3) {
        const at::Tensor gradient = torch::full_like(loss, 1);
        const at::Tensor output = pipeline.forward(x);
        const at::Tensor ones = torch::ones_like(output);
        set_budget(device, memory_usage(device).current + 1);
        message = message_of<c10::OutOfMemoryError>([&] { output.backward(ones); });
      } else if (nested) {
        run_nested(devices[3].torch, act);
      } else {
        act();
      }
      set_budget(device, 0);
      EXPECT_THAT(message, HasSubstr("stage " + std::to_string(failing)));
      EXPECT_THAT(message, HasSubstr("is out of memory"));
      pipeline.zero_grad();
      pipeline.forward(x).square().mean().backward();  // the pipeline stays usable
    }
  }
}

}  // namespace
}  // namespace trestle
