// Assigning layers to stages: torchgpipe's own cases, and the optimum against brute force.
#include "trestle/plan/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>

#include "trestle/base/error.h"

namespace trestle::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double bottleneck(const std::vector<double>& costs, const std::vector<int>& balance) {
  double worst = 0;
  auto layer = costs.begin();
  for (const int count : balance) {
    worst = std::max(worst, std::accumulate(layer, layer + count, 0.0));
    layer += count;
  }
  return worst;
}

// Tries every cut, by recursion.
double best_of_all(const std::vector<double>& costs, int stages, std::size_t first = 0) {
  if (stages == 1) return std::accumulate(costs.begin() + first, costs.end(), 0.0);
  double best = std::numeric_limits<double>::infinity();
  double mine = 0;
  for (std::size_t end = first + 1; end + stages - 1 <= costs.size(); ++end) {
    mine += costs[end - 1];
    best = std::min(best, std::max(mine, best_of_all(costs, stages - 1, end)));
  }
  return best;
}

std::string refusal(const std::vector<double>& costs, int stages) {
  try {
    balance(costs, stages);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Balance, CostsOneToSixInTwoParts) {
  EXPECT_THAT(balance({1, 2, 3, 4, 5, 6}, 2), ElementsAre(4, 2));
}

TEST(Balance, AcceptsZeroCosts) {
  const auto parts = balance({0, 0, 0, 0}, 2);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0), 4);
  EXPECT_GE(*std::min_element(parts.begin(), parts.end()), 1);
}

TEST(Balance, GivesOneStageAllLayers) { EXPECT_THAT(balance({3, 1, 2}, 1), ElementsAre(3)); }

TEST(Balance, GivesEachStageOneLayer) { EXPECT_THAT(balance({3, 1, 2}, 3), ElementsAre(1, 1, 1)); }

TEST(Balance, IsolatesAHugeLayer) {
  EXPECT_THAT(balance({1, 1, 100, 1, 1}, 3), ElementsAre(2, 1, 2));
}

TEST(Balance, RejectsFewerThanOneStage) {
  EXPECT_THAT(refusal({1, 2}, 0), HasSubstr("0 stages"));
  EXPECT_THAT(refusal({1, 2}, -1), HasSubstr("-1 stages"));
}

TEST(Balance, RejectsFewerLayersThanStages) {
  EXPECT_THAT(refusal({1, 2}, 3), HasSubstr("2 layers cannot be cut into 3 stages"));
  EXPECT_THAT(refusal({}, 1), HasSubstr("0 layers"));
}

TEST(Balance, DoesNotSeparateLayersThatShareAParameter) {
  EXPECT_THAT(balance({1, 1, 1, 1}, 2, {{1, 2}}), ElementsAre(3, 1));
  EXPECT_THAT(balance({1, 1, 1, 5, 1}, 2, {{2, 4}}), ElementsAre(2, 3));
  EXPECT_THAT(balance({1, 1, 1}, 2, {{0, 0}}), ElementsAre(2, 1));
  EXPECT_THAT(
      [] {
        balance({1, 1, 1}, 2, {{0, 2}});
      },
      testing::ThrowsMessage<UsageError>(HasSubstr("there are only 0 places to cut")));
}

TEST(Balance, RejectsInvalidCosts) {
  EXPECT_THAT(refusal({1, -2}, 1), HasSubstr("layer 1"));
  EXPECT_THAT(refusal({std::nan(""), 2}, 1), HasSubstr("layer 0"));
}

TEST(Balance, IsTheOptimum) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> layers(1, 11);
  std::uniform_real_distribution<double> cost(0, 10);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> costs(layers(random));
    for (auto& value : costs) value = round % 3 == 0 ? std::floor(cost(random)) : cost(random);
    for (int stages = 1; stages <= std::min<int>(5, static_cast<int>(costs.size())); ++stages) {
      const auto parts = balance(costs, stages);
      ASSERT_EQ(static_cast<int>(parts.size()), stages);
      ASSERT_GE(*std::min_element(parts.begin(), parts.end()), 1);
      ASSERT_EQ(std::accumulate(parts.begin(), parts.end(), 0), static_cast<int>(costs.size()));
      EXPECT_NEAR(bottleneck(costs, parts), best_of_all(costs, stages), 1e-9);
    }
  }
}

// Consecutive layers, each of which keeps its input.
LayerProfile chain(const std::vector<Bytes>& parameters, const std::vector<Bytes>& values) {
  LayerProfile profile;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    profile.layers.push_back({.name = "layer" + std::to_string(i),
                              .forward = 1,
                              .backward = 2,
                              .parameters = parameters[i]});
    profile.values.push_back({.from = static_cast<int>(i) - 1,
                              .to = {static_cast<int>(i)},
                              .saved_by = {static_cast<int>(i)},
                              .bytes = values[i]});
  }
  return profile;
}

TEST(BalanceBySize, T52FollowsActivations) {
  EXPECT_THAT(balance_by_size(chain({0, 0, 0, 0, 0, 0}, {1, 2, 3, 4, 5, 6}), 2), ElementsAre(4, 2));
  EXPECT_THAT(balance_by_size(chain({0, 0, 0, 0, 0, 0}, {6, 5, 4, 3, 2, 1}), 2), ElementsAre(2, 4));
}

TEST(BalanceBySize, T53FollowsParameters) {
  EXPECT_THAT(balance_by_size(chain({1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 0, 0}), 2), ElementsAre(4, 2));
  EXPECT_THAT(balance_by_size(chain({6, 5, 4, 3, 2, 1}, {0, 0, 0, 0, 0, 0}), 2), ElementsAre(2, 4));
}

TEST(BalanceBySize, T54OptimizerStatesMayReverseTheBalance) {
  const LayerProfile profile = chain({1, 2, 3, 4, 5, 6}, {60, 50, 40, 30, 20, 10});
  EXPECT_THAT(balance_by_size(profile, 2), ElementsAre(2, 4));
  EXPECT_THAT(balance_by_size(profile, 2, {.optimizer_states = 98}), ElementsAre(4, 2));
  EXPECT_THAT(balance_by_size(profile, 2, {.micro_batches = 2}), ElementsAre(2, 4));
}

TEST(BalanceBySize, RecomputationKeepsInputsOnly) {
  const LayerProfile profile = chain({0, 0, 0}, {10, 100, 100});
  using schedule::Recompute;
  const auto bytes = [&](Recompute recompute) {
    return stage_bytes(profile, 0, 3, {.micro_batches = 4, .recompute = recompute});
  };
  EXPECT_EQ(bytes(Recompute::Never), 4 * 210);
  EXPECT_EQ(bytes(Recompute::Always), 4 * 10 + 210);
  EXPECT_EQ(bytes(Recompute::ExceptLast), 3 * 10 + 210);
}

// Layers 2 and 3 use a parameter of layer 0: a copy and its gradient, without an optimizer's state.
TEST(BalanceBySize, CountsTiedParameterOncePerStage) {
  LayerProfile profile = chain({0, 0, 0, 0}, {0, 0, 0, 0});
  profile.layers[0].parameters = 10;
  profile.ties = {{.owner = 0, .users = {2, 3}, .bytes = 10}};
  const auto bytes = [&](int first, int last) {
    return stage_bytes(profile, first, last, {.optimizer_states = 2});
  };
  EXPECT_EQ(bytes(0, 4), 4 * 10);
  EXPECT_EQ(bytes(0, 2), 4 * 10);
  EXPECT_EQ(bytes(1, 2), 0);
  EXPECT_EQ(bytes(2, 4), 2 * 10);
  EXPECT_EQ(bytes(3, 4), 2 * 10);
  profile.ties[0].users = {4};
  EXPECT_THROW(bytes(0, 4), UsageError);
}

TEST(BalanceBySize, CountsASkipWhereItIsUsedAndKept) {
  LayerProfile profile = chain({0, 0, 0, 0}, {0, 0, 0, 0});
  profile.values.push_back({.from = 0, .to = {3}, .saved_by = {3}, .bytes = 50});
  EXPECT_EQ(stage_bytes(profile, 0, 2, {}), 0);
  EXPECT_EQ(stage_bytes(profile, 2, 4, {}), 50);
  EXPECT_EQ(
      stage_bytes(profile, 2, 4, {.micro_batches = 3, .recompute = schedule::Recompute::Always}),
      3 * 50 + 50);
}

TEST(BalanceWithin, FindsTheFastestCutThatFits) {
  LayerProfile profile = chain({100, 1, 1, 1}, {0, 0, 0, 0});
  profile.layers[3].backward = 50;
  EXPECT_THAT(balance_by_time(profile, 2), ElementsAre(3, 1));
  EXPECT_THAT(balance_within(profile, {0, 0}), ElementsAre(3, 1));
  EXPECT_THAT(balance_within(profile, {202, 0}), ElementsAre(2, 2));  // weights and gradients
  EXPECT_THAT(balance_within(profile, {200, 6}), ElementsAre(1, 3));
  try {
    balance_within(profile, {199, 0});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no cut into 2 stages fits the budgets: the smallest needs "
                                        "200 B, 6 B"));
  }
}

TEST(BalanceWithin, StagesOfOneDeviceShareItsBudget) {
  const LayerProfile profile = chain({10, 20, 30, 10}, {0, 0, 0, 0});  // 20, 40, 60 and 20 bytes
  const std::vector<Bytes> budgets = {80, 80, 80};
  EXPECT_THAT(balance_within(profile, budgets), ElementsAre(2, 1, 1));
  EXPECT_THAT(balance_within(profile, budgets, {}, {0, 1, 0}), ElementsAre(2, 1, 1));
  EXPECT_THAT(balance_within(profile, {60, 100, 60}, {}, {4, 1, 4}), ElementsAre(1, 2, 1));
  try {
    balance_within(profile, {60, 80, 60}, {}, {4, 1, 4});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("and some stages share a device"));
  }
}

// Compares with every cut of random profiles into stages that alternate between two devices.
TEST(BalanceWithin, FindsTheFastestCutOnSharedDevices) {
  std::mt19937 random(6);
  const auto draw = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  int fitting = 0;
  for (int round = 0; round < 300; ++round) {
    const int layers = 4 + draw(4);
    LayerProfile profile;
    for (int i = 0; i < layers; ++i)
      profile.layers.push_back({.name = "", .forward = 1.0 + draw(9), .parameters = draw(20)});
    const std::vector<Bytes> of_devices = {40 + draw(100), draw(4) == 0 ? 0 : 40 + draw(100)};
    const std::vector<int> devices = {0, 1, 0, 1};
    const auto outcome = [&](const std::vector<int>& cut) {
      double slowest = 0;
      std::vector<Bytes> used(2, 0);
      int first = 0;
      for (std::size_t stage = 0; stage < cut.size(); ++stage) {
        double seconds = 0;
        for (int i = first; i < first + cut[stage]; ++i)
          seconds += profile.layers[static_cast<std::size_t>(i)].forward;
        slowest = std::max(slowest, seconds);
        used[stage % 2] += stage_bytes(profile, first, first + cut[stage], {});
        first += cut[stage];
      }
      for (std::size_t d = 0; d < 2; ++d)
        if (of_devices[d] > 0 && used[d] > of_devices[d]) slowest = 1e9;
      return slowest;
    };
    double best = 1e9;
    for (int a = 1; a < layers; ++a)
      for (int b = 1; a + b < layers; ++b)
        for (int c = 1; a + b + c < layers; ++c)
          best = std::min(best, outcome({a, b, c, layers - a - b - c}));
    const std::vector<Bytes> budgets = {of_devices[0], of_devices[1], of_devices[0], of_devices[1]};
    if (best == 1e9) {
      EXPECT_THROW(balance_within(profile, budgets, {}, devices), UsageError);
      continue;
    }
    ++fitting;
    EXPECT_EQ(outcome(balance_within(profile, budgets, {}, devices)), best);
  }
  EXPECT_GT(fitting, 50);
  EXPECT_LT(fitting, 250);
}

TEST(BalanceWithin, CountsTheOptimizersStep) {
  const LayerProfile profile = chain({10, 20}, {5, 5});
  const SizeOptions plain;
  SizeOptions with_step;
  with_step.step_transients = {30, 60};
  EXPECT_EQ(stage_bytes(profile, 0, 2, with_step), 2 * 30 + 60);
  EXPECT_LT(stage_bytes(profile, 0, 2, plain), 2 * 30 + 60);
  with_step.step_transients = {30};
  EXPECT_THROW(stage_bytes(profile, 0, 2, with_step), UsageError);
}

// Compares with every cut.
TEST(BalanceBySize, IsTheOptimum) {
  std::mt19937 random(5);
  const auto draw = [&](int most) { return static_cast<Bytes>(random() % (most + 1)); };
  for (int round = 0; round < 200; ++round) {
    const int layers = 3 + static_cast<int>(draw(5));
    LayerProfile profile;
    for (int i = 0; i < layers; ++i) {
      profile.layers.push_back({.name = "",
                                .forward = static_cast<double>(draw(9)),
                                .parameters = draw(20),
                                .inner = draw(20),
                                .transient = draw(9)});
      const int to = i + static_cast<int>(draw(layers - 1 - i));
      profile.values.push_back({.from = i - 1, .to = {to}, .saved_by = {}, .bytes = draw(30)});
      if (draw(1) > 0) profile.values.back().saved_by.push_back(to);
    }
    const SizeOptions options{
        .optimizer_states = static_cast<int>(draw(2)),
        .micro_batches = 1 + static_cast<int>(draw(3)),
        .recompute = draw(1) > 0 ? schedule::Recompute::Never : schedule::Recompute::ExceptLast};
    const auto largest = [&](const std::vector<int>& cut) {
      Bytes most = 0;
      int first = 0;
      for (const int count : cut) {
        most = std::max(most, stage_bytes(profile, first, first + count, options));
        first += count;
      }
      return most;
    };
    Bytes best = largest({1, layers - 1});
    for (int first = 2; first < layers; ++first)
      best = std::min(best, largest({first, layers - first}));
    EXPECT_EQ(largest(balance_by_size(profile, 2, options)), best);
    // The tightest budget that fits, and one that is smaller.
    EXPECT_LE(largest(balance_within(profile, {best, best}, options)), best);
    if (best > 1) {
      EXPECT_THROW(balance_within(profile, {best - 1, best - 1}, options), UsageError);
    }
  }
}

TEST(LayerProfile, SurvivesARoundTripThroughJson) {
  LayerProfile profile = chain({1, 2}, {3, 4});
  profile.layers[0].forward = 0.1 + 0.2;
  profile.together = {{0, 1}};
  profile.loss_memory = 2.5;
  profile.checkpoint = {"down1", "up"};
  profile.ties = {{.owner = 0, .users = {1}, .bytes = 3}};
  const std::string json = to_json(profile);
  EXPECT_EQ(to_json(layer_profile_from_json(json)), json);
  EXPECT_EQ(layer_profile_from_json(json).ties.at(0).bytes, 3);
  EXPECT_EQ(layer_profile_from_json(json).layers[0].forward, 0.1 + 0.2);
  EXPECT_EQ(layer_profile_from_json(json).loss_memory, 2.5);
  EXPECT_EQ(layer_profile_from_json(json).checkpoint, profile.checkpoint);
}

// Profiles saved before the forward's transient was measured separately.
TEST(LayerProfile, UsesTheWholeTransientWithoutTheForwards) {
  LayerProfile profile = chain({1}, {3});
  profile.layers[0].transient = 7;
  profile.layers[0].transient_forward = 2;
  std::string json = to_json(profile);
  EXPECT_EQ(layer_profile_from_json(json).layers[0].transient_forward, 2);
  const auto at = json.find("\"transient_bytes\"");
  json.replace(at, json.find('}', at) - at, "\"transient_bytes\": 7");
  EXPECT_EQ(layer_profile_from_json(json).layers[0].transient_forward, 7);
}

TEST(LayerProfile, HasTheHalvesOfABackward) {
  LayerProfile profile = chain({1, 2}, {3, 4});
  profile.layers[0].transient = 9;
  profile.layers[0].split = LayerCost::Split{
      .input_grad = 0.5, .weight_grad = 0.25, .kept_for_weights = 7, .transient_weight_grad = 5};
  auto json = nlohmann::json::parse(to_json(profile));
  EXPECT_EQ(layer_profile_from_json(json.dump()).layers[0].split, profile.layers[0].split);
  EXPECT_FALSE(layer_profile_from_json(json.dump()).layers[1].split);
  // Files without W's peak have that of the backward.
  json["layers"][0]["split_backward"].erase("transient_weight_grad_bytes");
  EXPECT_EQ(layer_profile_from_json(json.dump()).layers[0].split->transient_weight_grad, 9);
}

TEST(LayerProfile, RejectsInvalidJson) {
  const std::string json = to_json(chain({1, 2}, {3, 4}));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string copy = json;
    copy.replace(copy.find(from), from.size(), to);
    return copy;
  };
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("[1]"), json.substr(0, json.size() / 2),
        changed("\"forward_seconds\": 1.0", "\"forward_seconds\": -1.0"),
        changed("\"forward_seconds\": 1.0", "\"forward_seconds\": \"x\""),
        changed("\"from\": 0", "\"from\": 7"), changed("\"together\": []", "\"together\": [[1]]")})
    EXPECT_THROW(layer_profile_from_json(bad), FormatError) << bad;
}

LayerProfile two_layers() {
  return {.layers = {{.name = "a", .forward = 1, .parameters = 8, .inner = 4},
                     {.name = "b", .forward = 1, .parameters = 8, .inner = 4}},
          .values = {{.from = 0, .to = {1}, .saved_by = {1}, .bytes = 16}}};
}

// A profile built in code is checked like one from a file.
TEST(Balance, RejectsProfilesWithInvalidNumbers) {
  const auto refused = [](const auto& change) {
    LayerProfile profile = two_layers();
    change(profile);
    EXPECT_THROW(balance_by_time(profile, 2), UsageError);
    EXPECT_THROW(balance_by_size(profile, 2), UsageError);
    EXPECT_THROW(balance_within(profile, {0, 0}), UsageError);
    EXPECT_THROW(stage_bytes(profile, 0, 1, {}), UsageError);
  };
  refused([](LayerProfile& profile) { profile.layers[0].forward = -1; });
  refused([](LayerProfile& profile) { profile.layers[0].backward = std::nan(""); });
  refused([](LayerProfile& profile) { profile.layers[1].inner = -4; });
  refused([](LayerProfile& profile) { profile.values[0].from = 2; });
  refused([](LayerProfile& profile) { profile.values[0].to = {3}; });
  refused([](LayerProfile& profile) { profile.values[0].saved_by = {2}; });
  refused([](LayerProfile& profile) { profile.values[0].bytes = -1; });
  refused([](LayerProfile& profile) { profile.together = {{0, 2}}; });
  refused([](LayerProfile& profile) { profile.together = {{1, 0}}; });
}

TEST(Balance, RejectsInvalidArguments) {
  EXPECT_THROW(balance({1, 2}, 2, {{0, 5}}), UsageError);
  EXPECT_THROW(balance({1, 2}, 2, {{-1, 0}}), UsageError);
  EXPECT_THROW(stage_bytes(two_layers(), 1, 3, {}), UsageError);
  EXPECT_THROW(stage_bytes(two_layers(), -1, 1, {}), UsageError);
  EXPECT_THROW(stage_bytes(two_layers(), 2, 1, {}), UsageError);
  EXPECT_THROW(balance_by_size(two_layers(), 2, {.micro_batches = 0}), UsageError);
  EXPECT_THROW(balance_by_size(two_layers(), 2, {.optimizer_states = -1}), UsageError);
}

// Their sum exceeds an integer: the result is the largest integer, never a negative number.
TEST(Balance, ClampsSizesThatExceedIntegers) {
  LayerProfile profile = two_layers();
  for (LayerCost& layer : profile.layers) layer.inner = Bytes{10'000'000'000'000};
  EXPECT_EQ(stage_bytes(profile, 0, 2, {.micro_batches = 1'000'000}),
            std::numeric_limits<Bytes>::max());
  EXPECT_THROW(balance_within(profile, {1 << 30, 1 << 30}, {.micro_batches = 1'000'000}),
               UsageError);
}

}  // namespace
}  // namespace trestle::plan
