// Edge cases of step(), profile() and a Pipeline's queries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/pipeline/execute/autograd_bridge.h"
#include "trestle/schedule/csv.h"

namespace trestle {
namespace {

using support::chain;
using support::distance;
using support::input;
using support::message_of;
using support::target;
using support::width;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Step, AcceptsLossWithoutTarget) {
  const auto energy = nn::additive("energy", [](const at::Tensor& y, const at::Tensor& t) {
    EXPECT_FALSE(t.defined());
    return y.square().mean();
  });
  nn::Layers plain = chain(3);
  const at::Tensor loss = plain.forward(input(7)).square().mean();
  loss.backward();
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    const nn::Layers net = chain(3);
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {3, 2},
                            .micro_batches = 3,  // 3, 2 and 2 samples
                            .schedule = schedule});
    const auto result = pipeline.step(input(7), at::Tensor(), energy);
    EXPECT_EQ(result.weight, 7);
    EXPECT_NEAR(result.loss, loss.item<double>(), 1e-12);
    for (std::size_t i = 0; i < plain.parameters().size(); ++i)
      EXPECT_LT(distance(plain.parameters()[i].grad(), net.parameters()[i].grad()), 1e-12);
  }
}

// Two stages use input `a`, and `b` was computed from `before`. Two steps accumulate.
TEST(Step, GivesGradientsToInputsAndThroughTheirGraphs) {
  const auto make = [] {
    nn::Layers net(2);
    net.add("mix", [](at::Tensor a, at::Tensor b) { return a + b.square(); }).keep_input("a");
    net.add("rest", chain(2));
    net.add("again", support::add).take("a");
    return net;
  };
  const auto leaf = [] { return input(7).requires_grad_(); };
  const at::Tensor a = leaf(), before = leaf();
  for (int step = 0; step < 2; ++step)
    torch::nn::functional::cross_entropy(make().forward(nn::Values{a, before.tanh()})[0], target(7))
        .backward();
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const auto recompute : {Recompute::Never, Recompute::Always}) {
      const at::Tensor own_a = leaf(), own_before = leaf();
      Pipeline pipeline(make(), {.devices = virtual_devices(3),
                                 .balance = {2, 2, 1},
                                 .micro_batches = 3,
                                 .schedule = schedule,
                                 .recompute = recompute});
      for (int step = 0; step < 2; ++step)
        pipeline.step(nn::Values{own_a, own_before.tanh()}, target(7), nn::cross_entropy());
      EXPECT_LT(distance(a.grad(), own_a.grad()), 1e-12) << schedule;
      EXPECT_LT(distance(before.grad(), own_before.grad()), 1e-12) << schedule;
    }
  }
}

TEST(Step, RefusesTargetThatNeedsGradient) {
  Pipeline pipeline(chain(3), {.devices = virtual_devices(2), .balance = {3, 2}});
  EXPECT_THAT(message_of<UsageError>([&] {
                pipeline.step(input(), input().requires_grad_(), nn::mean_squared_error());
              }),
              HasSubstr("the target needs a gradient"));
}

TEST(Step, RefusesLossWithoutGradient) {
  Pipeline pipeline(chain(3), {.devices = virtual_devices(2), .balance = {3, 2}});
  const auto loss = nn::additive(
      "cut", [](const at::Tensor& y, const at::Tensor&) { return y.detach().square().mean(); });
  EXPECT_THAT(message_of<UsageError>([&] { pipeline.step(input(), target(), loss); }),
              HasSubstr("loss 'cut' has no gradient"));
}

TEST(Step, KeysRandomNumbersOfLoss) {
  const auto loss = nn::additive("noisy", [](const at::Tensor& y, const at::Tensor&) {
    return (y + torch::randn_like(y)).square().mean();
  });
  const auto run = [&](int seed, std::vector<Device> devices) {
    Pipeline pipeline(chain(3), {.devices = std::move(devices), .balance = {3, 2}});
    torch::manual_seed(seed);
    const at::Tensor x = input();
    torch::manual_seed(seed);
    return pipeline.step(x, target(), loss).loss;
  };
  EXPECT_EQ(run(1, virtual_devices(2)), run(2, virtual_devices(2)));
  EXPECT_NEAR(run(1, virtual_devices(2)), run(2, {cpu_device()}), 1e-12);
}

TEST(Step, RefusesMissingTarget) {
  Pipeline pipeline(chain(3), {.devices = virtual_devices(2), .balance = {3, 2}});
  for (const auto& loss : {nn::cross_entropy(), nn::mean_squared_error(), nn::dice()}) {
    EXPECT_THAT(message_of<UsageError>([&] { pipeline.step(input(), at::Tensor(), loss); }),
                HasSubstr("needs a target but got None"));
  }
}

TEST(Step, MovesExistingGradientsWithModel) {
  const nn::Layers net = chain(3);
  const auto loss = [&] {
    return torch::nn::functional::cross_entropy(net.forward(input()), target());
  };
  loss().backward();
  std::vector<at::Tensor> once;
  for (const auto& parameter : net.parameters()) once.push_back(parameter.grad().clone());
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {3, 2}});
  pipeline.step(input(), target(), nn::cross_entropy());
  // cuts the model again
  Pipeline again(net, {.devices = virtual_devices(3), .balance = {1, 2, 2}});
  again.step(input(), target(), nn::cross_entropy());
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(net.parameters()[i].grad().device(), net.parameters()[i].device());
    EXPECT_LT(distance(3 * once[i], net.parameters()[i].grad()), 1e-12);
  }
}

// Uses one weight twice inside a layer.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(width, width));
    first->to(at::kDouble);
    register_parameter("again", first->weight);
  }
  at::Tensor forward(at::Tensor x) {
    return torch::linear(torch::linear(x, first->weight).tanh(), first->weight);
  }
  torch::nn::Linear first{nullptr};
};
TORCH_MODULE(Tied);

TEST(Profile, KeepsGradientOfParameterTiedInsideLayer) {
  nn::Layers net;
  const Tied tied;
  net.add("tied", tied);
  Pipeline pipeline(net, {.devices = {cpu_device()}});
  pipeline.step(input(), target(), nn::cross_entropy());
  const at::Tensor before = tied->first->weight.grad().clone();
  pipeline.profile({input()}, target(), nn::cross_entropy());
  ASSERT_TRUE(tied->first->weight.grad().defined());
  EXPECT_TRUE(torch::equal(before, tied->first->weight.grad()));
}

TEST(Step, KeepsFirstOutput) {
  nn::Layers net = chain(2);
  net.add("two", [](at::Tensor x) { return std::make_tuple(x, x.sum()); });
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {2, 2}, .micro_batches = 2});
  const auto result =
      pipeline.step(input(), target(), nn::cross_entropy(), {.output = StepOptions::Output::Keep});
  EXPECT_EQ(result.output.sizes(), (std::vector<std::int64_t>{8, width}));
}

TEST(Step, RefusesLossesThatAreNoRealNumbersAndWeightsThatCountNothing) {
  const at::Tensor x = input(), y = target();
  const auto refusal = [&](const nn::Loss& loss) {
    const nn::Layers net = chain(3);
    Pipeline pipeline(net, {.balance = {static_cast<int>(net.size())}, .micro_batches = 2});
    return message_of<UsageError>([&] { pipeline.step(x, y, loss); });
  };
  const auto square = [](at::Tensor output, at::Tensor) { return output.square().mean(); };
  for (const double weight : {-1.0, std::nan(""), HUGE_VAL})
    EXPECT_THAT(refusal(nn::additive("weighted", square, [=](at::Tensor) { return weight; })),
                AllOf(HasSubstr("loss 'weighted' has weight"), HasSubstr("micro-batch 0")));
  EXPECT_THAT(refusal(nn::additive("turning",
                                   [](at::Tensor output, at::Tensor) {
                                     return torch::complex(output, output).mean();
                                   })),
              AllOf(HasSubstr("loss 'turning' must return one real number")));
}

TEST(Options, UnsupportedActionsAreRefusedAtConstruction) {
  const auto table = schedule::parse_csv("0UNSHARD,0F0,,,0B0,0REDUCE_GRAD\n,,1F0,1B0\n");
  EXPECT_THAT(message_of<UsageError>([&] {
                Pipeline(chain(3), {.devices = virtual_devices(2),
                                    .balance = {3, 2},
                                    .micro_batches = 1,
                                    .plan = {.table = table}});
              }),
              AllOf(HasSubstr("cannot run"), HasSubstr("0UNSHARD"), HasSubstr("0REDUCE_GRAD")));
}

TEST(Options, AllErrorsAreReportedAtOnce) {
  EXPECT_THAT(
      message_of<UsageError>([] {
        Pipeline(chain(3), {.devices = virtual_devices(2),
                            .balance = {2, 2, 0},
                            .micro_batches = 0,
                            .schedule = "gpip",
                            .plan = {.recompute_per_stage = {Recompute::Always}},
                            .cores = {.threads = -1}});
      }),
      AllOf(HasSubstr("the pipeline's options have 7 mistakes"), HasSubstr("micro_batches = 0"),
            HasSubstr("threads = -1"), HasSubstr("did you mean 'gpipe'"),
            HasSubstr("a stage without layers"), HasSubstr("covers 4 layers"),
            HasSubstr("3 stages, but 2 devices"), HasSubstr("recompute_per_stage has 1 entries")));
}

// Thousands of threads would stop the machine before the first step.
TEST(Options, TooManyThreadsAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] {
                Pipeline(chain(3), {.devices = {cpu_device()}, .cores = {.threads = 4096}});
              }),
              HasSubstr("threads = 4096 is not 0 (chosen) to"));
  EXPECT_THAT(message_of<UsageError>([] { set_worker_threads(100000); }),
              HasSubstr("cannot run an operator on 100000 threads"));
}

TEST(Options, UnknownStagesAreRefused) {
  Pipeline pipeline(chain(3), {.devices = virtual_devices(2), .balance = {3, 2}});
  for (const int stage : {-1, 2}) {
    EXPECT_THAT(message_of<UsageError>([&] { pipeline.device(stage); }),
                HasSubstr("the pipeline has 2, counted from 0"));
    EXPECT_THAT(message_of<UsageError>([&] { pipeline.stage_parameters(stage); }),
                HasSubstr("there is no stage"));
  }
}

TEST(Threads, TwoThreadsCanShareOnePipeline) {
  const support::WatchDog dog("two threads");
  for (const auto& devices : {virtual_devices(2), std::vector<Device>(2, cpu_device())}) {
    const nn::Layers net = chain(3);
    Pipeline pipeline(net, {.devices = devices, .balance = {3, 2}, .micro_batches = 2});
    const auto work = [&] {
      for (int i = 0; i < 20; ++i) {
        pipeline.step(input(), target(), nn::cross_entropy());
        pipeline.evaluate(input(3 + i % 3));
        pipeline.timeline();
      }
    };
    std::thread other(work);
    work();
    other.join();
    EXPECT_EQ(pipeline.step_number(), 40);
  }
}

TEST(Timeline, MemoryStartsAtPersistentBytesAndShowsPeaksInsideActions) {
  // The second stage needs a megabyte only during its forward.
  nn::Layers net = chain(1);
  net.add("scratch", [](at::Tensor x) {
    return x + torch::ones({1 << 17}, x.options().requires_grad(false)).sum() * 0;
  });
  const Device device = virtual_devices(2)[1];
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {1, 1}});
  pipeline.step(input(), target(), nn::cross_entropy());
  const Bytes held = memory_usage(device.torch).current;
  reset_peak_memory(device.torch);
  pipeline.step(input(), target(), nn::cross_entropy());
  const auto timeline = pipeline.timeline();
  Bytes first = -1;
  for (const auto& sample : timeline.memory) {
    if (sample.rank == 1 && first < 0) first = sample.bytes;
  }
  EXPECT_EQ(first, held);
  EXPECT_GE(timeline.peak_bytes[1], held + (Bytes{1} << 20));
  EXPECT_EQ(timeline.peak_bytes[1], memory_usage(device.torch).peak);
}

// Only a thread's name tells that it is libtorch's backward thread of a device.
struct AsksForItsThread : torch::autograd::Function<AsksForItsThread> {
  static inline bool on_device_thread = false;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    on_device_thread = pipeline::on_autograd_device_thread();
    return gradients;
  }
};

TEST(LibtorchSmoke, BackwardThreadIsRecognizedByName) {
  const auto run_on = [](at::Device device) {
    AsksForItsThread::apply(torch::ones({}, device).requires_grad_()).backward();
    return AsksForItsThread::on_device_thread;
  };
  EXPECT_TRUE(run_on(virtual_devices(1)[0].torch));
  EXPECT_FALSE(run_on(at::kCPU));
  EXPECT_FALSE(pipeline::on_autograd_device_thread());
}

}  // namespace
}  // namespace trestle
