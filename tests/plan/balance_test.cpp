// Dividing layers among stages: torchgpipe's own cases, and the optimum against trying everything.
#include "trestle/plan/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// Every way to cut, by recursion.
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

TEST(Balance, CostsOfZeroAreFine) {
  const auto parts = balance({0, 0, 0, 0}, 2);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0), 4);
  EXPECT_GE(*std::min_element(parts.begin(), parts.end()), 1);
}

TEST(Balance, OneStageTakesAll) { EXPECT_THAT(balance({3, 1, 2}, 1), ElementsAre(3)); }

TEST(Balance, OneLayerEach) { EXPECT_THAT(balance({3, 1, 2}, 3), ElementsAre(1, 1, 1)); }

TEST(Balance, OneHugeLayerStandsAlone) {
  EXPECT_THAT(balance({1, 1, 100, 1, 1}, 3), ElementsAre(2, 1, 2));
}

TEST(Balance, FewerThanOnePartIsRefused) {
  EXPECT_THAT(refusal({1, 2}, 0), HasSubstr("0 stages"));
  EXPECT_THAT(refusal({1, 2}, -1), HasSubstr("-1 stages"));
}

TEST(Balance, FewerLayersThanPartsIsRefused) {
  EXPECT_THAT(refusal({1, 2}, 3), HasSubstr("2 layers cannot be cut into 3 stages"));
  EXPECT_THAT(refusal({}, 1), HasSubstr("0 layers"));
}

TEST(Balance, LayersThatBelongTogetherAreNotCutApart) {
  EXPECT_THAT(balance({1, 1, 1, 1}, 2, {{1, 2}}), ElementsAre(3, 1));
  EXPECT_THAT(balance({1, 1, 1, 5, 1}, 2, {{2, 4}}), ElementsAre(2, 3));
  EXPECT_THAT(balance({1, 1, 1}, 2, {{0, 0}}), ElementsAre(2, 1));
  EXPECT_THAT(
      [] {
        balance({1, 1, 1}, 2, {{0, 2}});
      },
      testing::ThrowsMessage<UsageError>(HasSubstr("there are only 0 places to cut")));
}

TEST(Balance, WhatIsNoCostIsRefused) {
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

}  // namespace
}  // namespace trestle::plan
