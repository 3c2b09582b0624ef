// The costs of stages from hand-made layers, to the byte.
#include "trestle/plan/stage_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Four consecutive layers. The graph of `b` keeps its input, that of `c` its output, that of `d`
// its input. The last layer uses the first layer's result too, as a skip.
LayerProfile four() {
  return {
      .layers =
          {{.name = "a", .forward = 1, .backward = 2, .parameters = 10, .buffers = 3},
           {.name = "b", .forward = 2, .backward = 3, .parameters = 20, .inner = 7},
           {.name = "c", .forward = 4, .backward = 8, .transient = 790, .transient_forward = 40},
           {.name = "d", .forward = 1, .backward = 1, .parameters = 5, .transient = 660}},
      .values = {{.from = -1, .to = {0}, .saved_by = {0}, .bytes = 100},
                 {.from = 0, .to = {1, 3}, .saved_by = {1, 3}, .bytes = 200},
                 {.from = 1, .to = {2}, .saved_by = {}, .bytes = 300},
                 {.from = 2, .to = {3}, .saved_by = {2, 3}, .bytes = 400},
                 {.from = 3, .to = {4}, .saved_by = {}, .bytes = 50}}};
}

TEST(StageCosts, SumsTimes) {
  const auto stages = costs_of_cut(four(), {2, 2}).costs.stages;
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].forward, 3);
  EXPECT_EQ(stages[0].forward_no_graph, 3);
  EXPECT_EQ(stages[0].recompute, 3);
  EXPECT_EQ(stages[0].backward, 5);
  EXPECT_EQ(stages[1].forward, 5);
  EXPECT_EQ(stages[1].backward, 9);
  EXPECT_EQ(stages[1].input_grad, 4.5);
  EXPECT_EQ(stages[1].weight_grad, 4.5);
}

// The four layers, of which each was measured with I and W.
LayerProfile four_split() {
  LayerProfile profile = four();
  for (LayerCost& layer : profile.layers)
    layer.split = LayerCost::Split{.input_grad = layer.backward / 4,
                                   .weight_grad = layer.backward,
                                   .kept_for_weights = 60,
                                   .transient_weight_grad = 30};
  return profile;
}

TEST(StageCosts, SumsTheHalvesOfABackward) {
  const simulate::StageCost last = costs_of_cut(four_split(), {2, 2}).costs.stages[1];
  EXPECT_EQ(last.input_grad, 9.0 / 4);
  EXPECT_EQ(last.weight_grad, 9);
  EXPECT_EQ(last.kept_for_weights, 2 * 60);
  EXPECT_EQ(last.transient_weight_grad, 30);
  EXPECT_EQ(last.transient_first_weight_grad, 30 + 5);  // c allocates beside the gradient of d
}

// Nothing needs the gradient of its inputs, so I has nothing to compute, and frees nothing.
TEST(StageCosts, AStageThatSendsNoGradientHasNoInputGrad) {
  const simulate::StageCost first = costs_of_cut(four_split(), {2, 2}).costs.stages[0];
  EXPECT_EQ(first.input_grad, 0);
  EXPECT_EQ(first.weight_grad, first.backward);
  // What F keeps, and the gradients of the outputs of a and b.
  EXPECT_EQ(first.kept_for_weights, first.saved + 200 + 300);
  EXPECT_EQ(*first.kept_for_weights + *first.transient_weight_grad,
            first.saved + first.transient_backward);

  LayerProfile frozen = four_split();
  for (const std::size_t layer : {0, 1})
    frozen.layers[layer].frozen = frozen.layers[layer].parameters;
  EXPECT_EQ(costs_of_cut(frozen, {2, 2}).costs.stages[1].input_grad, 0);
  frozen.ties = {{.owner = 3, .users = {1}, .bytes = 4}};  // b trains a weight of d
  EXPECT_EQ(costs_of_cut(frozen, {2, 2}).costs.stages[1].input_grad, 9.0 / 4);
}

TEST(StageCosts, ComputesPersistentBytes) {
  const auto stages = costs_of_cut(four(), {2, 2}, {.optimizer_states = 2}).costs.stages;
  EXPECT_EQ(stages[0].persistent, 3 * 30 + 3);
  EXPECT_EQ(stages[0].gradients, 30);
  EXPECT_EQ(stages[1].persistent, 3 * 5);
  EXPECT_EQ(stages[1].gradients, 5);
}

// Layer d uses a parameter of 4 bytes that a owns. The owner's stage alone has optimizer state.
TEST(StageCosts, CountsTiedParameterOncePerStage) {
  LayerProfile profile = four();
  profile.ties = {{.owner = 0, .users = {3}, .bytes = 4}};
  const auto two = costs_of_cut(profile, {2, 2}, {.optimizer_states = 2, .bytes_per_second = 8});
  EXPECT_EQ(two.costs.stages[0].persistent, 3 * 30 + 3);
  EXPECT_EQ(two.costs.stages[0].gradients, 30);
  EXPECT_EQ(two.costs.stages[1].persistent, 3 * 5 + 4);
  EXPECT_EQ(two.costs.stages[1].gradients, 5 + 4);
  ASSERT_EQ(two.costs.ties.size(), 1u);
  EXPECT_EQ(two.costs.ties[0].owner, 0);
  EXPECT_EQ(two.costs.ties[0].copy, 1);
  EXPECT_EQ(two.costs.ties[0].bytes, 4);
  EXPECT_EQ(two.costs.ties[0].seconds, 0.5);
  const auto one = costs_of_cut(profile, {4}, {.optimizer_states = 2}).costs;
  EXPECT_EQ(one.stages[0].persistent, 3 * 35 + 3);
  EXPECT_EQ(one.stages[0].gradients, 35);
  EXPECT_TRUE(one.ties.empty());
  // While c runs backwards, d's gradients exist, and the tied one with them.
  EXPECT_EQ(one.stages[0].transient_first_backward,
            costs_of_cut(four(), {4}).costs.stages[0].transient_first_backward + 4);
}

TEST(StageCosts, ComputesWhatGraphsKeep) {
  const auto stages = costs_of_cut(four(), {2, 2}).costs.stages;
  EXPECT_EQ(stages[0].saved, 100 + 200 + 7);
  EXPECT_EQ(stages[1].saved, 200 + 400 + 50);  // the skip, c's result, and the model's output
  EXPECT_EQ(stages[0].kept_for_recompute, 100 + 3);
  EXPECT_EQ(stages[1].kept_for_recompute, 200 + 300);
  EXPECT_EQ(stages[0].recompute_excess, 3 * 3);
  EXPECT_EQ(stages[1].recompute_excess, 0);
}

TEST(StageCosts, ComputesTheForwardsTransient) {
  const auto stages = costs_of_cut(four(), {2, 2}).costs.stages;
  EXPECT_EQ(stages[0].transient_forward, 300);  // b's result, which its graph does not keep
  // While c runs: both inputs, the result, and 40 transient bytes are 940; 650 of them are kept.
  EXPECT_EQ(stages[1].transient_forward, 200 + 300 + 400 + 40 - 650);
  // With copies of the inputs: b holds a's result, which is an output, its own result, and 7
  // inside.
  EXPECT_EQ(stages[0].transient_no_graph, 200 + 300 + 7);
  EXPECT_EQ(stages[1].transient_no_graph, 200 + 300 + 400 + 40);
}

TEST(StageCosts, ComputesTheBackwardsTransient) {
  const auto stages = costs_of_cut(four(), {2, 2}).costs.stages;
  // The gradients of a's result, which is an output, and of b's result are received. During b's
  // backward the whole graph exists, its own gradient is a part of its transient, and that of a's
  // result waits.
  EXPECT_EQ(stages[0].transient_backward, 200 + 300);
  EXPECT_EQ(stages[0].transient_first_backward,
            300 + 200);  // graphs are freed before gradients exist
  // During c's backward its output still exists. The skip, which d kept, is freed, but its gradient
  // and d's 5 bytes of gradients exist.
  EXPECT_EQ(stages[1].transient_backward, 790 + 400 + 200 - 650);
  EXPECT_EQ(stages[1].transient_first_backward, 790 + 400 + 200 + 5 - 650);
}

// Layers without transient memory return views of their output's gradient. When the inputs'
// gradients are copied to be sent, the whole gradient still exists.
TEST(StageCosts, CopiesViewsOfAGradientToSendThem) {
  LayerProfile profile = four();
  profile.layers[2].transient = profile.layers[3].transient = 0;
  const auto stages = costs_of_cut(profile, {2, 2}).costs.stages;
  EXPECT_EQ(stages[1].transient_backward, (200 + 300) + (400 + 50) - 650);
}

TEST(StageCosts, ComputesRoutes) {
  const CutCosts cut = costs_of_cut(four(), {1, 1, 2}, {.bytes_per_second = 100});
  ASSERT_EQ(cut.routes.size(), 3u);
  ASSERT_EQ(cut.costs.routes.size(), 3u);
  EXPECT_EQ(cut.routes[0], (schedule::Route{0, 1, false, "main"}));
  EXPECT_EQ(cut.routes[1], (schedule::Route{1, 2, false, "main"}));
  EXPECT_EQ(cut.routes[2], (schedule::Route{0, 2, true, "a"}));
  EXPECT_EQ(cut.costs.routes[0].bytes, 200);
  EXPECT_EQ(cut.costs.routes[0].seconds, 2);
  EXPECT_EQ(cut.costs.routes[0].saved, 0);  // only other stages keep it
  EXPECT_EQ(cut.costs.routes[1].bytes, 300);
  EXPECT_EQ(cut.costs.routes[2].bytes, 200);
  EXPECT_EQ(costs_of_cut(four(), {2, 2}).costs.routes[1].saved, 200);  // b keeps it
  EXPECT_TRUE(costs_of_cut(four(), {4}).routes.empty());
}

TEST(StageCosts, AccountsForAWholeBatchLoss) {
  const auto stages = costs_of_cut(four(), {2, 2}, {.whole_batch_loss_over = 8}).costs.stages;
  EXPECT_EQ(stages[0].output_kept, 0);
  EXPECT_EQ(stages[1].output_kept, 50);
  EXPECT_EQ(stages[1].loss_kept, 8 * 50);
  EXPECT_EQ(stages[1].loss_transient, 8 * 50);
}

// The parameters of c are gathered while it runs. Its backward has their gradients twice. Each
// layer keeps half of its gradients.
TEST(StageCosts, AddTheMemoryOfUnitsWhereItsLayerRuns) {
  const auto plain = costs_of_cut(four(), {4}).costs.stages[0];
  const auto at = [&](std::size_t layer, UnitMemory memory, int shards = 1) {
    StageCostOptions options{.units = std::vector<UnitMemory>(4), .gradient_shards = shards};
    options.units[layer] = memory;
    return costs_of_cut(four(), {4}, options).costs.stages[0];
  };
  // The peaks are those of d in the backward, and of c in the forward.
  EXPECT_EQ(at(2, {.forward = 1000}).transient_forward, plain.transient_forward + 1000);
  EXPECT_EQ(at(2, {.forward = 1000}).transient_no_graph, plain.transient_no_graph + 1000);
  EXPECT_EQ(at(2, {.forward = 1000}).transient_backward, plain.transient_backward);
  EXPECT_EQ(at(2, {.backward = 1000}).transient_backward, plain.transient_backward + 1000);
  EXPECT_EQ(at(2, {.backward = 1000}).transient_forward, plain.transient_forward);
  // A small layer elsewhere has its memory when the peak is not there.
  EXPECT_EQ(at(0, {.forward = 10}).transient_forward, plain.transient_forward);
  EXPECT_EQ(at(0, {.backward = 10}).transient_backward, plain.transient_backward);
  // While c runs, d's 5 bytes of gradients are there; 2 of them with two shards.
  EXPECT_EQ(at(2, {.backward = 1000}).transient_first_backward,
            at(2, {.backward = 1000}).transient_backward + 5);
  EXPECT_EQ(at(2, {.backward = 1000}, 2).transient_first_backward,
            at(2, {.backward = 1000}).transient_backward + 2);
  EXPECT_EQ(at(0, {}, 2).persistent, plain.persistent);
}

TEST(StageCosts, WorkInTheSimulator) {
  const CutCosts cut = costs_of_cut(four(), {2, 2});
  const auto table = schedule::generate("gpipe", {.stages = 2, .micro_batches = 3});
  const auto timeline =
      simulate::simulate(schedule::lower(table, {.routes = cut.routes}), cut.costs);
  // Stage 1 begins after the first F of stage 0, and stage 0 ends with one more B.
  EXPECT_EQ(schedule::makespan(timeline), 3 + 3 * 5 + 3 * 9 + 5);
  EXPECT_EQ(timeline.device_peak_bytes.size(), 2u);
}

TEST(StageCosts, RejectsInvalidBalancesAndOptions) {
  const auto refuses = [](std::vector<int> balance, StageCostOptions options, const char* why) {
    EXPECT_THAT([&] { costs_of_cut(four(), balance, options); },
                ThrowsMessage<UsageError>(HasSubstr(why)));
  };
  refuses({2, 1}, {}, "balance [2, 1] does not cut 4 layers");
  refuses({4, 0}, {}, "balance [4, 0]");
  refuses({}, {}, "balance []");
  refuses({2, 2}, {.optimizer_states = -1}, "optimizer_states -1");
  refuses({2, 2}, {.bytes_per_second = -1}, "bytes_per_second -1");
  refuses({2, 2}, {.gradient_shards = 0}, "gradient_shards 0");
  refuses({2, 2}, {.units = {{}, {}}}, "the units' memory of 2 layers; the profile has 4");
}

TEST(StageCosts, RejectsAProfileWithoutAValueBetweenStages) {
  LayerProfile profile = four();
  profile.values.clear();
  EXPECT_THROW(costs_of_cut(profile, {2, 2}), UsageError);
}

// c returns the memory of its argument, which only d keeps: 300 bytes, once.
TEST(StageCosts, CountsAViewAndItsValueOnce) {
  LayerProfile profile = four();
  profile.values[2].saved_by = {1};
  profile.values[3].bytes = 300;
  profile.values[3].saved_by = {3};
  const Bytes apart = costs_of_cut(profile, {4}).costs.stages[0].saved;
  profile.values[3].view_of = 2;
  EXPECT_THAT(memory_of_values(profile), testing::ElementsAre(0, 1, 2, 2, 4));
  EXPECT_EQ(costs_of_cut(profile, {4}).costs.stages[0].saved, apart - 300);
  // Over a cut each stage has memory of its own.
  EXPECT_EQ(costs_of_cut(profile, {3, 1}).costs.routes.front().saved, 300);
  const LayerProfile again = layer_profile_from_json(to_json(profile));
  EXPECT_EQ(again.values[3].view_of, 2);
  profile.values[2].view_of = 3;
  EXPECT_THAT([&] { check(profile); },
              ThrowsMessage<UsageError>(HasSubstr("value 2 of a profile is a view of value 3")));
}

}  // namespace
}  // namespace trestle::plan
