// Costs of a cut computed from single layers, compared with costs measured of the cut itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tests/pipeline/conv_net.h"
#include "tests/pipeline/small_gpt2.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/models/unet.h"
#include "trestle/models/unet3d.h"
#include "trestle/nn/token_loss.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/schedule/generate.h"
#include "trestle/simulate/simulate.h"

namespace trestle {
namespace {

using namespace support;

// A skip to the next stage, a skip over a stage, one with two consumers; dropout, batch norm, cat.
nn::Layers skip_net() {
  torch::manual_seed(0);
  nn::Layers net;
  const auto conv = [](int in) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 8, 3).padding(1));
  };
  net.add("first", conv(3)).keep_output("a");
  net.add("norm", torch::nn::BatchNorm2d(8)).keep_output("b");
  net.add("relu", torch::nn::ReLU());
  net.add("second", conv(8));
  net.add("drop", torch::nn::Dropout(0.5));
  net.add("join", [](at::Tensor x, at::Tensor b) { return torch::cat({x, b}, 1); }).take("b");
  net.add("third", conv(16));
  net.add("again",
          [](at::Tensor x, at::Tensor a, at::Tensor b) {
            return torch::cat({x, a, b}, 1);
          })
      .take("a")
      .take("b");
  net.add("mean", [](at::Tensor x) { return x.mean({2, 3}); });
  net.add("out", torch::nn::Linear(24, conv_classes));
  return net;
}

nn::Layers net_of_volumes() {
  return models::unet3d(
      {.classes = conv_classes, .width = 8, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 2}}});
}
at::Tensor volumes(std::int64_t count) {
  torch::manual_seed(2);
  return torch::randn({count, 1, 8, 16, 16});
}
at::Tensor pixel_labels(std::int64_t count) {
  torch::manual_seed(3);
  return torch::randint(conv_classes, {count, 32, 32});
}
at::Tensor voxel_labels(std::int64_t count) {
  torch::manual_seed(3);
  return torch::randint(conv_classes, {count, 8, 16, 16});
}

constexpr std::int64_t words = 512;
nn::Layers tied_net() { return small_gpt2(words); }
at::Tensor token_ids(std::int64_t count) {
  torch::manual_seed(4);
  return torch::randint(words, {count, 16});
}

struct CostCase {
  const char* name;
  std::function<nn::Layers()> net;
  std::vector<int> balance;
  // Without AVX-512 the backward of a convolution copies a gradient that is a view of another one,
  // as cat()'s are. The profile of single layers has no such gradient.
  Bytes copied_gradient = 0;
  // The layer that begins a U-Net's skip passes its input through: a stage holds that tensor once,
  // the profile of its layers twice. The peak is overestimated, in two and three dimensions alike.
  double more_at_peak = 0;
  int batch = 32;
  at::Tensor (*inputs)(std::int64_t) = images;
  at::Tensor (*targets)(std::int64_t) = labels;
  nn::Loss loss = nn::cross_entropy();
  double loss_memory = 0;  // StageCostOptions::additive_loss_memory
};
constexpr Bytes skip_gradient = 8 * 8 * 32 * 32 * sizeof(float);
constexpr Bytes unet_skip_gradient = 2 * 8 * 32 * 32 * sizeof(float);
constexpr Bytes volume_skip_gradient = 2 * 8 * 8 * 16 * 16 * sizeof(float);
// A forward without a graph frees what attention and MLP of a block keep for a backward, of which
// the profile of single layers has only the sum.
constexpr Bytes kept_in_block = 25 * 1024;
CostCase tied_case(const char* name, const std::vector<int>& balance) {
  return {
      name, tied_net, balance, kept_in_block, 0, 8, token_ids, token_ids, nn::token_cross_entropy(),
      2};
}
const CostCase cost_cases[] = {{"TwoStages", [] { return conv_net(); }, {7, 5}},
                               {"ThreeStages", [] { return conv_net(); }, {4, 3, 5}},
                               {"OneStage", [] { return conv_net(); }, {12}},
                               {"SkipsTwoStages", skip_net, {4, 6}, skip_gradient},
                               {"SkipsThreeStages", skip_net, {3, 4, 3}},
                               {"SkipsALayerEach", skip_net, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
                               {"UNetTwoStages",
                                [] { return models::unet({.classes = conv_classes, .width = 8}); },
                                {5, 17},
                                2 * unet_skip_gradient,
                                0.1,
                                8,
                                images,
                                pixel_labels},
                               {"VolumesTwoStages",
                                net_of_volumes,
                                {3, 9},
                                2 * volume_skip_gradient,
                                0.1,
                                8,
                                volumes,
                                voxel_labels},
                               tied_case("TiedTwoStages", {2, 3}),
                               tied_case("TiedThreeStages", {2, 1, 2}),
                               tied_case("TiedOneStage", {5})};

constexpr int profiled_batches = 4;

// Most values are equal to the byte. Views of a gradient that keep all of it (after cat()), the
// loss, and kernels' scratch memory may differ.
constexpr double tolerance = 0.1;
constexpr Bytes small_change = 128;  // scalars of the loss, counters

class StageCosts : public ::testing::TestWithParam<CostCase> {
 protected:
  StageCosts()
      : net_(GetParam().net()),
        pipeline_(net_, {.devices = virtual_devices(static_cast<int>(GetParam().balance.size())),
                         .balance = GetParam().balance,
                         .micro_batches = profiled_batches}),
        measured_(pipeline_.profile({GetParam().inputs(GetParam().batch)},
                                    GetParam().targets(GetParam().batch), GetParam().loss)) {
    const nn::Layers same = GetParam().net();
    const auto device = virtual_devices(1)[0].torch;
    const at::Tensor micro_batch = GetParam().inputs(GetParam().batch / profiled_batches);
    // The number of a stage of the pipeline: a convolution's scratch memory depends on it.
    const DeviceThreads threads(device,
                                threads_of_each(static_cast<int>(GetParam().balance.size())));
    made_ = plan::costs_of_cut(profile_layers(same, {micro_batch}, device), GetParam().balance,
                               {.additive_loss_memory = GetParam().loss_memory});
  }

  nn::Layers net_;
  Pipeline pipeline_;
  simulate::Costs measured_;
  plan::CutCosts made_;
};

TEST_P(StageCosts, RoutesEqualPipelines) {
  const auto routes = pipeline_.schedule().routes;
  ASSERT_EQ(made_.routes.size(), routes.size());
  for (std::size_t r = 0; r < routes.size(); ++r) {
    EXPECT_EQ(made_.routes[r].from_stage, routes[r].from_stage) << r;
    EXPECT_EQ(made_.routes[r].to_stage, routes[r].to_stage) << r;
    EXPECT_EQ(made_.routes[r].skip, routes[r].skip) << r;
    EXPECT_EQ(made_.costs.routes[r].bytes, measured_.routes[r].bytes) << r;
    EXPECT_EQ(made_.costs.routes[r].saved, measured_.routes[r].saved) << r;
  }
}

TEST_P(StageCosts, BytesAreNearMeasuredBytes) {
  using simulate::StageCost;
  struct Field {
    const char* name;
    Bytes StageCost::*bytes;
  };
  const Field fields[] = {{"saved", &StageCost::saved},
                          {"kept_for_recompute", &StageCost::kept_for_recompute},
                          {"recompute_excess", &StageCost::recompute_excess},
                          {"transient_forward", &StageCost::transient_forward},
                          {"transient_no_graph", &StageCost::transient_no_graph},
                          {"transient_recompute", &StageCost::transient_recompute},
                          {"transient_backward", &StageCost::transient_backward},
                          {"transient_first_backward", &StageCost::transient_first_backward}};
  ASSERT_EQ(made_.costs.stages.size(), measured_.stages.size());
  for (std::size_t s = 0; s < measured_.stages.size(); ++s) {
    const StageCost& measured = measured_.stages[s];
    const StageCost& made = made_.costs.stages[s];
    EXPECT_EQ(made.persistent, measured.persistent) << "stage " << s;
    EXPECT_EQ(made.gradients, measured.gradients) << "stage " << s;
    for (const Field& field : fields) {
      const Bytes expected = measured.*field.bytes;
      EXPECT_NEAR(made.*field.bytes, expected,
                  tolerance * expected + small_change + GetParam().copied_gradient)
          << field.name << " of stage " << s;
    }
  }
}

TEST_P(StageCosts, PredictPeaksOfMeasuredCosts) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : all_modes) {
      SCOPED_TRACE(text(schedule, ", recompute ", schedule::to_string(recompute)));
      const int stages = static_cast<int>(GetParam().balance.size());
      const auto table =
          schedule::generate(schedule, {.stages = stages, .micro_batches = profiled_batches});
      const std::vector<Recompute> modes(static_cast<std::size_t>(stages), recompute);
      const auto peaks = [&](const simulate::Costs& costs, const auto& routes) {
        const auto lowered = schedule::lower(table, {.routes = routes, .recompute = modes});
        return simulate::simulate(lowered, costs).device_peak_bytes;
      };
      // Equal times, so that only bytes differ.
      simulate::Costs made = made_.costs;
      for (std::size_t s = 0; s < made.stages.size(); ++s) {
        made.stages[s].forward = measured_.stages[s].forward;
        made.stages[s].forward_no_graph = measured_.stages[s].forward_no_graph;
        made.stages[s].recompute = measured_.stages[s].recompute;
        made.stages[s].backward = measured_.stages[s].backward;
      }
      for (std::size_t i = 0; i < made.ties.size(); ++i)
        made.ties[i].seconds = measured_.ties.at(i).seconds;
      for (std::size_t r = 0; r < made.routes.size(); ++r)
        made.routes[r].seconds = measured_.routes[r].seconds;
      const auto expected = peaks(measured_, pipeline_.schedule().routes);
      const auto predicted = peaks(made, made_.routes);
      ASSERT_EQ(predicted.size(), expected.size());
      for (std::size_t device = 0; device < expected.size(); ++device)
        EXPECT_THAT(static_cast<double>(predicted[device]) / static_cast<double>(expected[device]),
                    ::testing::AllOf(::testing::Ge(1 - tolerance),
                                     ::testing::Le(1 + tolerance + GetParam().more_at_peak)))
            << "device " << device;
    }
  }
}

// The same of a schedule with I and W.
TEST_P(StageCosts, PredictPeaksOfSplitBackwards) {
  const std::vector<int>& balance = GetParam().balance;
  Pipeline pipeline(GetParam().net(), {.devices = virtual_devices(static_cast<int>(balance.size())),
                                       .balance = balance,
                                       .micro_batches = profiled_batches,
                                       .schedule = "zb_h1"});
  const simulate::Costs measured = pipeline.profile(
      {GetParam().inputs(GetParam().batch)}, GetParam().targets(GetParam().batch), GetParam().loss);
  const nn::Layers same = GetParam().net();
  const auto device = virtual_devices(1)[0].torch;
  const at::Tensor micro_batch = GetParam().inputs(GetParam().batch / profiled_batches);
  const DeviceThreads threads(device, threads_of_each(static_cast<int>(balance.size())));
  simulate::Costs made =
      plan::costs_of_cut(
          profile_layers(same.graph(), {micro_batch}, device, nullptr, {}, SplitBackwards::Measure),
          balance, {.additive_loss_memory = GetParam().loss_memory})
          .costs;
  // Equal times, so that only bytes differ.
  for (std::size_t s = 0; s < balance.size(); ++s) {
    const simulate::StageCost& expected = measured.stages[s];
    simulate::StageCost& stage = made.stages[s];
    EXPECT_NEAR(*stage.kept_for_weights, *expected.kept_for_weights,
                4 * small_change + GetParam().copied_gradient)
        << "stage " << s;
    stage.forward = expected.forward;
    stage.input_grad = expected.input_grad;
    stage.weight_grad = expected.weight_grad;
    stage.backward = expected.backward;
  }
  for (std::size_t r = 0; r < made.routes.size(); ++r)
    made.routes[r].seconds = measured.routes[r].seconds;
  const auto expected = simulate::simulate(pipeline.schedule(), measured).device_peak_bytes;
  const auto predicted = simulate::simulate(pipeline.schedule(), made).device_peak_bytes;
  for (std::size_t d = 0; d < expected.size(); ++d)
    EXPECT_THAT(static_cast<double>(predicted[d]) / static_cast<double>(expected[d]),
                ::testing::AllOf(::testing::Ge(1 - tolerance),
                                 ::testing::Le(1 + tolerance + GetParam().more_at_peak)))
        << "device " << d;
}

INSTANTIATE_TEST_SUITE_P(Cuts, StageCosts, ::testing::ValuesIn(cost_cases),
                         [](const auto& info) { return info.param.name; });

// Times of single layers differ from times in a running stage, but both show which stage is slow.
TEST(StageCostTimes, AgreeOnSlowestStage) {
  nn::Layers net;
  net.add("small", torch::nn::Linear(8, 512));
  net.add("large0", torch::nn::Linear(512, 2048));
  net.add("large1", torch::nn::Linear(2048, 512));
  net.add("out", torch::nn::Linear(512, conv_classes));
  const std::vector<int> balance = {1, 2, 1};
  const at::Tensor x = torch::ones({64, 8});
  const auto made =
      plan::costs_of_cut(profile_layers(net, {x}, virtual_devices(1)[0].torch), balance);
  Pipeline pipeline(net, {.devices = virtual_devices(3), .balance = balance});
  const auto measured = pipeline.profile({x}, labels(64), nn::cross_entropy());
  for (const simulate::Costs* costs : {&made.costs, &measured}) {
    for (const std::size_t other : {std::size_t{0}, std::size_t{2}}) {
      EXPECT_GT(costs->stages[1].forward, costs->stages[other].forward);
      EXPECT_GT(costs->stages[1].backward, costs->stages[other].backward);
    }
  }
}

}  // namespace
}  // namespace trestle
