// Failures of a pipeline over ranks: every rank ends in time with the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/schedule/csv.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using support::messages_of_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

nn::Layers doublers(int count) {
  nn::Layers net;
  for (int i = 0; i < count; ++i)
    net.add("double" + std::to_string(i), [](at::Tensor x) { return x * 2; });
  return net;
}

nn::Layers trained(std::function<void()> before_second = {}) {
  nn::Layers net(nn::Seed{3});
  net.add("first", [] { return torch::nn::Linear(4, 4); });
  net.add("second", [before_second](at::Tensor x) {
    if (before_second) before_second();
    return x.tanh();
  });
  net.add("third", [] { return torch::nn::Linear(4, 4); });
  return net;
}

PipelineOptions in_group(const World& world, PipelineOptions options = {}) {
  options.group = world.group();
  return options;
}

TEST(RanksFailures, RefuseMoreRanksThanStages) {
  for (const auto& message : messages_of_ranks(3, [](World& world) {
         Pipeline(doublers(2), in_group(world, {.balance = {1, 1}}));
       }))
    EXPECT_THAT(message, AllOf(HasSubstr("2 stages on 2 ranks"), HasSubstr("the group has 3 ranks"),
                               HasSubstr("nothing to do")));
}

TEST(RanksFailures, NameDifferencesBetweenPipelines) {
  const support::WatchDog watch("different pipelines");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline(doublers(3), in_group(world, {.balance = world.rank() == 0 ? std::vector<int>{1, 2}
                                                                        : std::vector<int>{2, 1},
                                           .micro_batches = 4}));
  });
  for (const auto& message : all)
    EXPECT_THAT(message, AllOf(HasSubstr("the ranks made different pipelines"),
                               HasSubstr("'balance [2, 1]' on rank 1"),
                               HasSubstr("'balance [1, 2]' on rank 0")));
}

// Each table is legal, and differs from the other one on rank 0 alone.
TEST(RanksFailures, NameDifferentTables) {
  const support::WatchDog watch("different tables");
  const auto all = messages_of_ranks(2, [](World& world) {
    const std::string first = world.rank() == 0 ? "0F0,0F1,0B0,0B1" : "0F0,0F1,0B1,0B0";
    PipelineOptions options = in_group(world, {.balance = {1, 2}, .micro_batches = 2});
    options.plan.table = schedule::parse_csv(first + "\n1F0,1F1,1B0,1B1\n");
    Pipeline(doublers(3), options);
  });
  for (const auto& message : all)
    EXPECT_THAT(message, AllOf(HasSubstr("the ranks made different pipelines: 'table of "),
                               HasSubstr(" actions with hash "), HasSubstr("on rank 1")));
}

// The second micro-batch fails once the last rank waits for it, so that this rank can report its
// place.
TEST(RanksFailures, ExceptionInLayerReachesAllRanks) {
  const support::WatchDog watch("exception in a layer");
  const auto all = messages_of_ranks(3, [](World& world) {
    int calls = 0;
    const auto fail_second = [&] {
      if (++calls < 2) return;
      while (world.status_of(2).find("2F0") == std::string::npos) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(100ms);
      throw std::runtime_error("the layer is out of order");
    };
    const PipelineOptions options = in_group(world, {.balance = {1, 1, 1}, .micro_batches = 2});
    Pipeline pipeline(trained(fail_second), options);
    pipeline.step(world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor(),
                  world.rank() == 2 ? torch::ones({4, 4}) : at::Tensor(), nn::mean_squared_error());
  });
  for (const auto& message : all) EXPECT_THAT(message, HasSubstr("the layer is out of order"));
  EXPECT_THAT(all[1], AllOf(HasSubstr("in stage 1, micro-batch 1"), HasSubstr("1F1 on rank 1")));
  for (const int other : {0, 2}) EXPECT_THAT(all[other], HasSubstr("rank 1"));
  EXPECT_THAT(all[2], HasSubstr("rank 2 was at 2RECV_F1, action 3 of 8, waiting for rank 1: "));
}

TEST(RanksFailures, FirstFailureKeepsTypeInSpawn) {
  const support::WatchDog watch("type of a failure");
  EXPECT_THROW(spawn(2,
                     [](World& world) {
                       const auto fail = [] { throw UsageError("odd weather"); };
                       Pipeline pipeline(trained(fail), in_group(world, {.balance = {1, 2}}));
                       pipeline.evaluate(world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor());
                     }),
               UsageError);
}

TEST(RanksFailures, NameLateRankAndItsLastAction) {
  const support::WatchDog watch("late rank");
  const auto all = messages_of_ranks(2, [](World& world) {
    const auto sleep = [] { std::this_thread::sleep_for(800ms); };
    Pipeline pipeline(trained(world.rank() == 1 ? std::function<void()>(sleep) : nullptr), [&] {
      auto options = in_group(world, {.balance = {1, 2}, .micro_batches = 2});
      options.deadline = 300ms;
      return options;
    }());
    pipeline.step(world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor(),
                  world.rank() == 1 ? torch::ones({4, 4}) : at::Tensor(), nn::mean_squared_error());
  });
  EXPECT_THAT(all[0], AllOf(HasSubstr("rank 0 waited 300 ms for the gradient of micro-batch"),
                            HasSubstr("from rank 1, which")));
  EXPECT_THAT(all[1], HasSubstr("rank 0 waited 300 ms"));
}

// From the second step on a rank waits for a message like the last one by itself.
TEST(RanksFailures, NameRankThatIsLateInALaterStep) {
  const support::WatchDog watch("late rank in a later step");
  const auto all = messages_of_ranks(2, [](World& world) {
    int calls = 0;
    const auto sleep = [&] {
      if (++calls > 4) std::this_thread::sleep_for(800ms);
    };
    PipelineOptions options = in_group(world, {.balance = {1, 2}, .micro_batches = 2});
    options.deadline = 300ms;
    Pipeline pipeline(trained(world.rank() == 1 ? std::function<void()>(sleep) : nullptr), options);
    const at::Tensor x = torch::ones({4, 4});
    for (int step = 0; step < 3; ++step)
      pipeline.step(world.rank() == 0 ? x : at::Tensor(), world.rank() == 1 ? x : at::Tensor(),
                    nn::mean_squared_error());
  });
  EXPECT_THAT(all[0], AllOf(HasSubstr("rank 0 waited 300 ms for the gradient of micro-batch"),
                            HasSubstr("from rank 1, which"), HasSubstr("in stage 0")));
  EXPECT_THAT(all[1], HasSubstr("rank 0 waited 300 ms"));
}

// A rank with nothing to receive waits until its sent messages are taken.
TEST(RanksFailures, NameRankThatDoesNotReceive) {
  const support::WatchDog watch("messages that nobody takes");
  nn::Layers net;
  net.add("first", [](at::Tensor x) { return x * 2; });
  net.add("slow", [](at::Tensor x) {
    std::this_thread::sleep_for(800ms);
    return x;
  });
  const auto all = messages_of_ranks(2, [&](World& world) {
    PipelineOptions options = in_group(world, {.balance = {1, 1}, .micro_batches = 6});
    options.deadline = 300ms;
    Pipeline pipeline(net, options);
    pipeline.evaluate(world.rank() == 0 ? torch::ones({6, 4000}) : at::Tensor());
  });
  EXPECT_THAT(all[0], AllOf(HasSubstr("rank 0 waited 300 ms for rank 1 to receive "),
                            HasSubstr(" messages, which last reported ")))
      << all[1];
}

TEST(RanksFailures, NameDifferentCalls) {
  const support::WatchDog watch("another call");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(doublers(2), in_group(world, {.balance = {1, 1}}));
    if (world.rank() == 0) {
      pipeline.evaluate(torch::ones({2}));
      pipeline.evaluate(torch::ones({2}));
    } else {
      pipeline.step(at::Tensor(), torch::ones({2}), nn::mean_squared_error());
    }
  });
  EXPECT_THAT(all[1], AllOf(HasSubstr("ranks 1 and 0 of the pipeline make different calls"),
                            HasSubstr("step() on rank 1, evaluate() on rank 0")));
  EXPECT_THAT(all[0], HasSubstr("make different calls"));
}

TEST(RanksFailures, NameDifferentStepNumbersAndBatchSizes) {
  const support::WatchDog watch("another batch size");
  auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    pipeline.step(world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor(),
                  world.rank() == 1 ? torch::ones({3, 4}) : at::Tensor(), nn::mean_squared_error());
  });
  EXPECT_THAT(all[1], HasSubstr("mini-batch size 3 on rank 1, 4 on rank 0"));
  all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    if (world.rank() == 1) pipeline.set_step_number(5);
    pipeline.step(world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor(),
                  world.rank() == 1 ? torch::ones({4, 4}) : at::Tensor(), nn::mean_squared_error());
  });
  EXPECT_THAT(all[1], HasSubstr("step number 5 on rank 1, 0 on rank 0"));
}

TEST(RanksFailures, RefuseFirstRankWithoutInput) {
  const support::WatchDog watch("no inputs");
  for (const bool with_target : {false, true}) {
    const auto all = messages_of_ranks(2, [&](World& world) {
      Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
      pipeline.step(at::Tensor(),
                    world.rank() == 1 || with_target ? torch::ones({4, 4}) : at::Tensor(),
                    nn::mean_squared_error());
    });
    EXPECT_THAT(all[0], HasSubstr("rank 0, the first of the pipeline, has no input: it is None"));
    EXPECT_THAT(all[1], HasSubstr("rank 0"));
  }
}

TEST(RanksFailures, RefuseFirstRankWithoutAnyInput) {
  const support::WatchDog watch("no inputs of two");
  const auto all = messages_of_ranks(2, [](World& world) {
    nn::Layers net(nn::Seed{5}, 2);
    net.add("add", [](at::Tensor x, at::Tensor y) { return x + y; });
    net.add("square", [](at::Tensor x) { return x * x; });
    Pipeline pipeline(net, in_group(world, {.balance = {1, 1}}));
    pipeline.step(nn::Values(2), torch::ones({4, 4}), nn::mean_squared_error());
  });
  EXPECT_THAT(all[0], HasSubstr("has no input: all 2 are None"));
}

TEST(RanksFailures, RefuseDifferentModes) {
  const support::WatchDog watch("another mode");
  const at::Tensor x = torch::ones({4, 4});
  const auto step = [&](Pipeline& pipeline) { pipeline.step(x, x, nn::mean_squared_error()); };
  const auto forward = [&](Pipeline& pipeline) {
    const at::NoGradGuard no_grad;
    pipeline.forward(x);
  };
  for (const auto& call : std::vector<std::function<void(Pipeline&)>>{step, forward}) {
    const auto all = messages_of_ranks(2, [&](World& world) {
      Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
      pipeline.train();
      call(pipeline);
      if (world.rank() == 0) pipeline.eval();
      pipeline.evaluate(x);  // always runs in evaluation mode
      call(pipeline);
    });
    EXPECT_THAT(all[1], AllOf(HasSubstr("ranks 1 and 0 of the pipeline make different calls"),
                              HasSubstr("mode training on rank 1, evaluation on rank 0")));
    EXPECT_THAT(all[0], HasSubstr("make different calls"));
  }
}

// The other ranks have returned from forward() already.
TEST(RanksFailures, ReportMissingBackward) {
  const support::WatchDog watch("backward of one rank");
  const Stopwatch time;
  const auto all = messages_of_ranks(3, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 1, 1}}));
    const at::Tensor output = pipeline.forward(torch::ones({4, 4}));
    if (world.rank() == 2) pipeline.backward(output.sum());
  });
  EXPECT_THAT(all[2],
              AllOf(HasSubstr("has returned, having last reported 'returned from forward(), its "
                              "backward() is to come', but rank 2 waits for it in send")));
  EXPECT_LT(time.seconds(), 5);
}

TEST(RanksFailures, RefuseBackwardWithoutForward) {
  const support::WatchDog watch("backward out of turn");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    pipeline.backward();
  });
  EXPECT_THAT(all[0], HasSubstr("Pipeline::backward() without a forward() before it"));
}

TEST(RanksFailures, RefuseBackwardAfterASecondForward) {
  const support::WatchDog watch("backward of the forward before the last");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    const at::Tensor output = pipeline.forward(torch::ones({4, 4}));
    {
      const at::NoGradGuard no_grad;
      pipeline.forward(torch::ones({4, 4}));
    }
    pipeline.backward(world.rank() == 1 ? output.sum() : at::Tensor());
  });
  EXPECT_THAT(all[0], HasSubstr("Pipeline::backward() after a second forward(), which ended the "
                                "first one's mini-batch"));
}

// Two pipelines of one shape: only the pipeline's number tells them apart.
TEST(RanksFailures, RefuseDifferentPipelinesOfOneGroup) {
  const support::WatchDog watch("two pipelines");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline one(trained(), in_group(world, {.balance = {1, 2}}));
    Pipeline two(trained(), in_group(world, {.balance = {1, 2}}));
    const at::Tensor x = torch::ones({4, 4});
    (world.rank() == 0 ? one : two).step(x, x, nn::mean_squared_error());
  });
  EXPECT_THAT(all[1],
              AllOf(HasSubstr("another pipeline on the same group"), HasSubstr("make_group()")));
  EXPECT_THAT(all[0], HasSubstr("another pipeline on the same group"));
}

TEST(RanksFailures, RefuseLossOnRankWithoutOutput) {
  const support::WatchDog watch("loss on the first rank");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    const at::Tensor output = pipeline.forward(torch::ones({4, 4}));
    pipeline.backward(world.rank() == 0 ? torch::ones({}, at::requires_grad()) : output.sum());
  });
  EXPECT_THAT(all[0], HasSubstr("with a loss on rank 0, where the model's output is not"));
  EXPECT_THAT(all[1], HasSubstr("with a loss on rank 0"));
}

TEST(RanksFailures, RefuseLossIndependentOfOutput) {
  const support::WatchDog watch("another loss");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    pipeline.forward(torch::ones({4, 4}));
    if (world.rank() == 0) return pipeline.backward();
    pipeline.backward(torch::ones({}, at::requires_grad()).sum());
  });
  for (const auto& message : all)
    EXPECT_THAT(message, HasSubstr("does not depend on what forward() returned"));
}

TEST(RanksFailures, RefuseInputMissingOnSomeRanks) {
  const support::WatchDog watch("input of one rank");
  const auto all = messages_of_ranks(2, [](World& world) {
    nn::Layers net;
    net.add("first", torch::nn::Linear(4, 4)).keep_input("x");
    net.add("second", [](at::Tensor y, std::optional<at::Tensor> x) { return x ? y + *x : y; })
        .take("x");
    Pipeline pipeline(net, in_group(world, {.balance = {1, 1}}));
    pipeline.evaluate(world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor());
  });
  for (const auto& message : all)
    EXPECT_THAT(message, HasSubstr("input 0 is None on rank 1, whose stage 1 uses it"));
}

TEST(RanksFailures, RefuseAutocastOnOneRank) {
  const support::WatchDog watch("autocast of one rank");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    const precision::Autocast autocast(world.rank() == 0 ? Precision::BFloat16
                                                         : Precision::Float32);
    const at::Tensor x = torch::ones({4, 4});
    pipeline.step(x, x, nn::mean_squared_error());
  });
  for (const auto& message : all) EXPECT_THAT(message, HasSubstr("different autocast settings"));
}

TEST(RanksFailures, RefuseDifferentClipping) {
  const support::WatchDog watch("clipping");
  const auto all = messages_of_ranks(2, [](World& world) {
    Pipeline pipeline(trained(), in_group(world, {.balance = {1, 2}}));
    const at::Tensor x = torch::ones({4, 4});
    pipeline.step(x, x, nn::mean_squared_error());
    pipeline.clip_grad_norm(world.rank() == 0 ? 1.0 : 0.5);
  });
  for (const auto& message : all) EXPECT_THAT(message, HasSubstr("in different ways"));
}

// A rank that catches the exception continues, and its world stays usable.
TEST(RanksFailures, LayerErrorReachesAllRanks) {
  const support::WatchDog watch("factory");
  const auto all = messages_of_ranks(2, [](World& world) {
    nn::Layers net;
    net.add("first", []() -> torch::nn::Linear { throw UsageError("no memory for it"); });
    net.add("second", [] { return torch::nn::Linear(4, 4); });
    Pipeline pipeline(net, in_group(world, {.balance = {1, 1}}));
  });
  for (const auto& message : all) EXPECT_THAT(message, HasSubstr("no memory for it"));
}

// One rank finds the error before the ranks meet, catches the exception and stays alive.
TEST(RanksFailures, OptionErrorOfOneRankReachesAllRanks) {
  const support::WatchDog watch("refused on one rank");
  const Stopwatch time;
  const auto table = [](const char* csv) { return schedule::parse_csv(csv, "own"); };
  const std::vector<std::pair<PipelineOptions, std::string>> cases = {
      {{.balance = {1, 2}}, "covers 3 layers"},
      {{.balance = {1, 1}, .schedule = "gpip"}, "gpip"},
      {{.balance = {1, 1}, .plan = {.table = table("0F0,0B0\n1B0,1F0\n")}}, "1B0"},
      {{.balance = {}}, "sample"}};
  for (const auto& [options, words] : cases) {
    const auto all = messages_of_ranks(2, [&, &options = options](World& world) {
      const int refused = options.balance.empty() ? 0 : 1;  // only rank 0 measures
      Pipeline pipeline(doublers(2),
                        in_group(world, world.rank() == refused || options.balance.empty()
                                            ? options
                                            : PipelineOptions{.balance = {1, 1}}));
      world.group().barrier();
    });
    const int refused = options.balance.empty() ? 0 : 1;
    EXPECT_THAT(all[refused], HasSubstr(words));
    EXPECT_THAT(all[1 - refused],
                AllOf(HasSubstr("rank " + std::to_string(refused) + " cannot make the pipeline: "),
                      HasSubstr(words)));
  }
  EXPECT_LT(time.seconds(), 10);
}

// Each rank would create layers of a different model.
TEST(RanksFailures, RefuseDifferentModelSeeds) {
  for (const auto& message : messages_of_ranks(2, [](World& world) {
         nn::Layers net(nn::Seed{static_cast<std::uint64_t>(world.rank())});
         net.add("first", [] { return torch::nn::Linear(4, 4); });
         net.add("second", [] { return torch::nn::Linear(4, 4); });
         Pipeline(net, in_group(world, {.balance = {1, 1}}));
       }))
    EXPECT_THAT(message, HasSubstr("'model's seed 1' on rank 1, 'model's seed 0' on rank 0"));
}

TEST(RanksFailures, RefuseThreadRanksOnOneDevice) {
  for (const auto& message : messages_of_ranks(2, [](World& world) {
         Pipeline(doublers(2),
                  in_group(world, {.devices = {virtual_devices(1)[0]}, .balance = {1, 1}}));
       }))
    EXPECT_THAT(message, HasSubstr("ranks 0 and 1 of the pipeline both use virtual:0"));
}

TEST(RanksFailures, RefuseDevicesOfOtherRanksStages) {
  for (const auto& message : messages_of_ranks(2, [](World& world) {
         Pipeline(doublers(2),
                  in_group(world, {.devices = {cpu_device(), cpu_device()}, .balance = {1, 1}}));
       }))
    EXPECT_THAT(message, HasSubstr("this rank has 1 stages, but 2 devices are given"));
}

}  // namespace
}  // namespace trestle
