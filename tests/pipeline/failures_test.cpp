// Exceptions keep their type and name their place. No failure hangs, and the pipeline stays usable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using support::message_of;
using support::WatchDog;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct OwnError : std::exception {
  int number = 7;
  const char* what() const noexcept override { return "an own error"; }
};

// The identity, which runs an action in its backward.
struct InBackward : torch::autograd::Function<InBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::function<void()>* action) {
    context->saved_data["action"] = reinterpret_cast<std::int64_t>(action);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    (*reinterpret_cast<std::function<void()>*>(context->saved_data["action"].toInt()))();
    return {gradients[0], at::Tensor()};
  }
};

// Three stages, each with a trap that can throw.
struct TrappedNet {
  std::function<void()> forward[3] = {[] {}, [] {}, [] {}};
  std::function<void()> backward[3] = {[] {}, [] {}, [] {}};
  std::atomic<int> forwards[3] = {0, 0, 0};

  nn::Layers layers() {
    nn::Layers net;
    for (int i = 0; i < 3; ++i) {
      net.add("linear" + std::to_string(i), torch::nn::Linear(4, 4));
      net.add("trap" + std::to_string(i), [this, i](at::Tensor x) {
        ++forwards[i];
        forward[i]();
        return InBackward::apply(x, &backward[i]);
      });
    }
    return net;
  }
};

PipelineOptions three_stages(const std::string& schedule = "gpipe",
                             Recompute recompute = Recompute::Never) {
  return {.devices = virtual_devices(3),
          .balance = {2, 2, 2},
          .micro_batches = 4,
          .schedule = schedule,
          .recompute = recompute};
}

const nn::Loss& loss() {
  static const nn::Loss instance = nn::mean_squared_error();
  return instance;
}
at::Tensor batch() { return torch::ones({8, 4}); }

// The trap throws at its third call: micro-batch 2 of the forward without recomputation.
template <class Exception>
std::function<void()> third_time(std::function<Exception()> make) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  return [calls, make] {
    if (++*calls == 3) throw make();
  };
}

template <class Exception>
void expect_kept(std::function<Exception()> make, const std::string& text, bool with_place) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
      for (int stage = 0; stage < 3; ++stage) {
        for (const bool backward : {false, true}) {
          SCOPED_TRACE(schedule + ", stage " + std::to_string(stage) +
                       (backward ? ", backward" : ", forward"));
          const WatchDog dog("an exception");
          TrappedNet net;
          Pipeline pipeline(net.layers(), three_stages(schedule, recompute));
          (backward ? net.backward : net.forward)[stage] = third_time(make);
          const std::string message =
              message_of<Exception>([&] { pipeline.step(batch(), batch(), loss()); });
          EXPECT_THAT(message, HasSubstr(text));
          if (with_place) {
            EXPECT_THAT(message, AllOf(HasSubstr("in stage " + std::to_string(stage)),
                                       HasSubstr("micro-batch ")));
            EXPECT_THAT(message, HasSubstr(backward ? "" : "trap" + std::to_string(stage)));
          }
          pipeline.zero_grad();
          EXPECT_GT(pipeline.step(batch(), batch(), loss()).loss, 0);  // the pipeline stays usable
        }
      }
    }
  }
}

TEST(Failures, KeepUsersExceptionUnchanged) {
  expect_kept<OwnError>([] { return OwnError(); }, "an own error", false);
}
TEST(Failures, RuntimeErrorNamesPlace) {
  expect_kept<std::runtime_error>([] { return std::runtime_error("boom"); }, "boom", true);
}
TEST(Failures, TrestleErrorsNamePlace) {
  expect_kept<UsageError>([] { return UsageError("do not"); }, "do not", true);
}
TEST(Failures, TorchErrorsNamePlace) {
  expect_kept<c10::ValueError>(
      [] {
        return c10::ValueError({__func__, __FILE__, __LINE__}, "bad value");
      },
      "bad value", true);
}

TEST(Failures, ShapeErrorNamesLayerAndShapes) {
  nn::Layers net;
  net.add("one", torch::nn::Linear(4, 4));
  net.add("two", torch::nn::Linear(5, 4));
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {1, 1}, .micro_batches = 4});
  EXPECT_THAT(message_of<c10::Error>([&] { pipeline.step(batch(), batch(), loss()); }),
              AllOf(HasSubstr("in stage 1, micro-batch 0"), HasSubstr("'two'"), HasSubstr("[2, 4]"),
                    HasSubstr("virtual:1")));
}

TEST(Failures, FailingStageStopsAllStages) {
  const WatchDog dog("a failing stage");
  TrappedNet net;
  auto options = three_stages();
  options.micro_batches = 8;
  Pipeline pipeline(net.layers(), options);
  std::atomic<bool> failed = false;
  net.forward[1] = [&] {
    failed = true;
    throw OwnError();
  };
  // In GPipe's forwards stage 0 never waits. Without cancellation it would run all eight.
  net.forward[0] = [&] {
    if (net.forwards[0] > 1) {
      while (!failed) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(500ms);  // much longer than cancellation takes
    }
  };
  EXPECT_THROW(pipeline.step(batch(), batch(), loss()), OwnError);
  EXPECT_LE(net.forwards[0], 3);
  EXPECT_EQ(net.forwards[2], 0);
}

TEST(Failures, DeadlineNamesWaitingAndAwaitedRank) {
  const WatchDog dog("a deadline");
  TrappedNet net;
  auto options = three_stages();
  options.deadline = 1s;  // much longer than any healthy step, even on a busy machine
  Pipeline pipeline(net.layers(), options);
  std::atomic<bool> sleepy = true;
  net.forward[0] = [&] {
    if (net.forwards[0] == 2 && sleepy.exchange(false)) std::this_thread::sleep_for(2s);
  };
  const std::string message =
      message_of<DeadlineError>([&] { pipeline.step(batch(), batch(), loss()); });
  EXPECT_THAT(message, HasSubstr("waited 1.0 s for the activations of micro-batch 1 from rank"));
  EXPECT_THAT(message, HasSubstr("in stage"));
  sleepy = false;
  EXPECT_GT(pipeline.step(batch(), batch(), loss()).loss, 0);
}

TEST(Failures, KeepTypeInCallersBackwardAndInEvaluate) {
  for (int stage = 0; stage < 3; ++stage) {
    const WatchDog dog("a caller's failure");
    TrappedNet net;
    Pipeline pipeline(net.layers(), three_stages());
    net.backward[stage] = third_time<OwnError>([] { return OwnError(); });
    const at::Tensor output = pipeline.forward(batch());
    EXPECT_THROW(output.sum().backward(), OwnError);
    net.forward[stage] = third_time<OwnError>([] { return OwnError(); });
    EXPECT_THROW(pipeline.evaluate(batch()), OwnError);
    EXPECT_TRUE(pipeline.model().graph().layers[0].module->is_training());
    pipeline.forward(batch()).sum().backward();
  }
}

TEST(Failures, LossErrorNamesLossAndShapes) {
  const WatchDog dog("a loss");
  TrappedNet net;
  Pipeline pipeline(net.layers(), three_stages("1f1b"));
  const nn::Loss broken = nn::additive("broken", [](const at::Tensor&, const at::Tensor&) {
    throw OwnError();
    return at::Tensor();
  });
  EXPECT_THROW(pipeline.step(batch(), batch(), broken), OwnError);
  const nn::Loss misfit = nn::additive("misfit", [](const at::Tensor& y, const at::Tensor&) {
    return y.matmul(at::ones({17, 1})).sum();
  });
  EXPECT_THAT(message_of<c10::Error>([&] { pipeline.step(batch(), batch(), misfit); }),
              HasSubstr("in loss 'misfit' (output and target ["));
  EXPECT_GT(pipeline.step(batch(), batch(), loss()).loss, 0);
}

TEST(Failures, NamePlaceOnPlainCpu) {
  TrappedNet net;
  Pipeline pipeline(net.layers(), {.balance = {2, 2, 2}, .micro_batches = 4});
  net.forward[1] = third_time<UsageError>([] { return UsageError("do not"); });
  EXPECT_THAT(message_of<UsageError>([&] { pipeline.step(batch(), batch(), loss()); }),
              HasSubstr("in stage 1, micro-batch 2"));
  EXPECT_GT(pipeline.step(batch(), batch(), loss()).loss, 0);
}

}  // namespace
}  // namespace trestle
