// find_nonfinite() over ranks: each rank searches its own layers, and all report the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/pipeline/rank_plans.h"
#include "tests/support/virtual_environment.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/lazy_module.h"
#include "trestle/pipeline/find_nonfinite.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr double infinite = std::numeric_limits<double>::infinity();

// Layers with dropout and a skip. The output of layer `breaks` is infinite or NaN, and so is that
// of 'late' for samples with values above a million.
nn::Layers net(const std::string& breaks = "") {
  nn::Layers made(nn::Seed{5});
  const auto linear = [] {
    torch::nn::Linear layer(6, 6);
    layer->to(at::kDouble);
    return layer;
  };
  const auto spoil = [breaks](const char* name, const at::Tensor& x) {
    return breaks == name ? x / 0 : x;
  };
  made.add("first", linear).keep_output("skip");
  made.add("drop", torch::nn::Dropout(0.2));
  made.add("second", [spoil](at::Tensor x) { return spoil("second", x.tanh()); });
  made.add("third", linear);
  made.add("join", [spoil](at::Tensor x, at::Tensor skip) { return spoil("join", x + skip); })
      .take("skip");
  made.add("late",
           [](at::Tensor x) { return at::where(x.abs().amax(1, true) > 1e6, infinite, x); });
  made.add("last", linear);
  return made;
}

at::Tensor sines() { return torch::arange(48, at::kDouble).reshape({8, 6}).sin(); }

struct NonfinitePlan {
  std::vector<int> balance;
  std::vector<int> rank_of_stage = {};
};

using Spoil = std::function<void(Pipeline&)>;

enum class Sought { Outputs, Gradients };

// The report of find_nonfinite() on each rank after a step. `spoil` changes the pipeline first.
std::vector<std::string> look(const NonfinitePlan& plan, const std::string& breaks,
                              const at::Tensor& input, const Spoil& spoil = {},
                              Sought what = Sought::Outputs) {
  const support::WatchDog watch("find_nonfinite over ranks");
  const RankPlan placed{
      .balance = plan.balance, .micro_batches = 4, .rank_of_stage = plan.rank_of_stage};
  return spawn(
      placed.ranks(),
      [&](World& world) {
        const auto& ranks = plan.rank_of_stage;
        const int first = ranks.empty() ? 0 : ranks.front();
        const int last = ranks.empty() ? world.size() - 1 : ranks.back();
        nn::Layers model = net(breaks);
        PipelineOptions options = options_of(placed);
        options.group = world.group();
        Pipeline pipeline(model, options);
        if (spoil) spoil(pipeline);
        const at::Tensor x = world.rank() == first ? input : at::Tensor();
        pipeline.step(x, world.rank() == last ? sines() : at::Tensor(), nn::mean_squared_error());
        const auto buffers = oracle::to_map(pipeline.named_buffers());
        const std::string words = what == Sought::Outputs ? find_nonfinite({x}, pipeline)
                                                          : find_nonfinite_gradient(pipeline);
        expect_same_bits(buffers, oracle::to_map(pipeline.named_buffers()));
        return words;
      },
      {.deadline = 20s});
}

const std::vector<NonfinitePlan>& plans() {
  static const std::vector<NonfinitePlan> all = {
      {{3, 4}}, {{2, 2, 3}}, {{1, 2, 2, 2}}, {{1, 2, 2, 2}, {0, 1, 1, 0}}};
  return all;
}

// "(rank 1, stage 2)" for a layer of net().
std::string place(const NonfinitePlan& plan, int layer) {
  int stage = 0;
  for (int end = plan.balance[0]; end <= layer;
       end += plan.balance[static_cast<std::size_t>(stage)])
    ++stage;
  const int rank =
      plan.rank_of_stage.empty() ? stage : plan.rank_of_stage[static_cast<std::size_t>(stage)];
  return text("(rank ", rank, ", stage ", stage, ")");
}

TEST(RanksFindNonfinite, NamesFirstLayerOnAllRanks) {
  for (const NonfinitePlan& plan : plans()) {
    SCOPED_TRACE(join(plan.balance, ","));
    EXPECT_THAT(look(plan, "second", sines()),
                Each("the output of layer 'second' " + place(plan, 2) +
                     " is the first that has values that are infinite or NaN (micro-batch 0)"));
    EXPECT_THAT(look(plan, "join", sines()),
                Each(HasSubstr("the output of layer 'join' " + place(plan, 4))));
    EXPECT_THAT(look(plan, "", sines()), Each(HasSubstr("and the loss is not")));
  }
}

TEST(RanksFindNonfinite, NamesMicroBatch) {
  at::Tensor x = sines();
  x.narrow(0, 4, 1).fill_(1e9);  // the first sample of the third micro-batch
  for (const NonfinitePlan& plan : plans())
    EXPECT_THAT(look(plan, "", x), Each("the output of layer 'late' " + place(plan, 5) +
                                        " is the first that has values that are infinite or NaN "
                                        "(micro-batch 2)"));
}

TEST(RanksFindNonfinite, NamesInputsAndParametersFirst) {
  for (const NonfinitePlan& plan : plans()) {
    EXPECT_THAT(look(plan, "second", sines() / 0), Each(HasSubstr("input 0 has values")));
    const auto spoil = [](Pipeline& pipeline) {
      const at::NoGradGuard no_grad;
      for (auto& [name, parameter] : pipeline.named_parameters())
        if (name == "third.bias" || name == "last.weight") parameter.fill_(infinite);
    };
    EXPECT_THAT(
        look(plan, "second", sines(), spoil),
        Each("parameter 'third.bias' " + place(plan, 3) + " has values that are infinite or NaN"));
  }
}

// The gradient nearest to the loss is the first in backward order.
TEST(RanksFindNonfinite, NamesGradientNearestToLoss) {
  for (const NonfinitePlan& plan : plans()) {
    EXPECT_THAT(look(plan, "", sines(), {}, Sought::Gradients), Each(""));
    EXPECT_THAT(look(plan, "join", sines(), {}, Sought::Gradients),
                Each(HasSubstr("the gradient of 'last.weight' " + place(plan, 6))));
  }
}

TEST(RanksFindNonfinite, CreatesNoLayersOfOtherRanks) {
  const support::WatchDog watch("no other rank's layers");
  spawn(2, [](World& world) {
    nn::Layers model = net("join");
    Pipeline pipeline(model, {.group = world.group(), .balance = {3, 4}, .micro_batches = 2});
    const at::Tensor x = world.rank() == 0 ? sines() : at::Tensor();
    pipeline.step(x, world.rank() == 1 ? sines() : at::Tensor(), nn::mean_squared_error());
    find_nonfinite({x}, pipeline);
    find_nonfinite_gradient(pipeline);
    const nn::Graph graph = pipeline.model().graph();
    EXPECT_EQ(graph.layers[0].module.made() != nullptr, world.rank() == 0);
    EXPECT_EQ(graph.layers[6].module.made() != nullptr, world.rank() == 1);
  });
}

// The search gets another input than the step did, which a layer cannot take; all ranks get its
// error.
TEST(RanksFindNonfinite, ErrorDuringSearchReachesAllRanks) {
  const support::WatchDog watch("goes wrong meanwhile");
  const auto all = spawn(3, [](World& world) -> std::string {
    nn::Layers model = net();
    Pipeline pipeline(model, {.group = world.group(), .balance = {2, 2, 3}, .micro_batches = 2});
    const bool first = world.rank() == 0;
    pipeline.step(first ? sines() : at::Tensor(), world.rank() == 2 ? sines() : at::Tensor(),
                  nn::mean_squared_error());
    try {
      find_nonfinite({first ? sines().narrow(1, 0, 5) : at::Tensor()}, pipeline);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
  EXPECT_THAT(all, Each(HasSubstr("layer 'first'")));
}

}  // namespace
}  // namespace trestle
