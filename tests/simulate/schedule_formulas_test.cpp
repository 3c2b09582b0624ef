// The exact bubbles and peaks of schedules, over integer costs. The formulas are those of Narayanan
// et al. 2021, Qi et al. 2023 and 2024, and DeepSeek's DualPipeV, with the corrections that an
// event simulation of PyTorch's tables showed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/simulate.h"

namespace trestle::simulate {
namespace {

using schedule::makespan;
using schedule::makespan_bubble;
using schedule::peak_live_activations;
using schedule::span_bubble;
using schedule::Timeline;
using testing::Each;

// The seconds of one chunk, which is a stage of a rank.
struct Seconds {
  int forward = 1, input_grad = 1, weight_grad = 1;
  int backward() const { return input_grad + weight_grad; }
};

Timeline simulated(const char* name, int ranks, int chunks, int micro_batches, Seconds cost,
                   double latency = 0) {
  const schedule::Schedule lowered = lower(schedule::generate(name, {.stages = ranks * chunks,
                                                                     .micro_batches = micro_batches,
                                                                     .stages_per_rank = chunks}),
                                           {});
  Costs costs;
  costs.stages.assign(static_cast<std::size_t>(lowered.stages),
                      {.forward = static_cast<double>(cost.forward),
                       .backward = static_cast<double>(cost.backward()),
                       .input_grad = static_cast<double>(cost.input_grad),
                       .weight_grad = static_cast<double>(cost.weight_grad)});
  costs.routes.assign(lowered.routes.size(), {.seconds = latency});
  return simulate(lowered, costs);
}

std::string case_of(int ranks, int chunks, int micro_batches, Seconds cost) {
  return text(ranks, " ranks, ", chunks, " chunks, ", micro_batches, " micro-batches, F ",
              cost.forward, ", I ", cost.input_grad, ", W ", cost.weight_grad);
}

class RandomSeconds {
 public:
  Seconds next() { return {any_(random_), any_(random_), any_(random_)}; }

 private:
  std::mt19937 random_{17};
  std::uniform_int_distribution<int> any_{1, 40};
};

// Narayanan et al. 2021, with the messages' latency and its floor.
TEST(ScheduleFormulas, OneForwardOneBackwardWithLatency) {
  RandomSeconds random;
  for (const int p : {2, 3, 4, 5, 8})
    for (int m = 1; m <= 8 * p; ++m) {
      const Seconds cost = random.next();
      for (const double latency : {0.0, 1.0, 7.0}) {
        const double expected = (m + p - 1) * (cost.forward + cost.backward()) +
                                2 * latency * ((p - 1) * (m + p - 1) / p);
        EXPECT_EQ(makespan(simulated("1f1b", p, 1, m, cost, latency)), expected)
            << case_of(p, 1, m, cost) << ", latency " << latency;
      }
    }
}

TEST(ScheduleFormulas, WholeBackwardsOfSeveralChunks) {
  RandomSeconds random;
  int cases = 0;
  for (const char* name : {"gpipe", "looped_bfs", "interleaved_1f1b"})
    for (int v = 1; v <= (std::string(name) == "gpipe" ? 1 : 3); ++v)
      for (const int p : {1, 2, 3, 4, 6})
        for (int m = 1; m <= 4 * p; ++m) {
          if (std::string(name) == "interleaved_1f1b" && m % std::max(1, m / p) != 0) continue;
          const Seconds cost = random.next();
          const int both = cost.forward + cost.backward();
          EXPECT_EQ(makespan_bubble(simulated(name, p, v, m, cost)),
                    (p - 1) * both + (v - 1) * std::max(0, p - m) * both)
              << name << " " << case_of(p, v, m, cost);
          ++cases;
        }
  EXPECT_GT(cases, 300);
}

TEST(ScheduleFormulas, PeaksOfActivations) {
  for (const int p : {1, 2, 3, 4, 6})
    for (int m = 1; m <= 3 * p; ++m) {
      EXPECT_THAT(peak_live_activations(simulated("model_parallel", p, 1, m, {})), Each(1));
      EXPECT_THAT(peak_live_activations(simulated("gpipe", p, 1, m, {})), Each(m));
      EXPECT_THAT(peak_live_activations(simulated("looped_bfs", p, 3, m, {})), Each(3 * m));
      const auto peaks = peak_live_activations(simulated("1f1b", p, 1, m, {}));
      for (int r = 0; r < p; ++r) EXPECT_EQ(peaks[static_cast<std::size_t>(r)], std::min(m, p - r));
      if (m % std::max(1, m / p) != 0) continue;
      for (int v = 1; v <= 3; ++v) {
        const int k = m / std::max(1, m / p);
        const auto interleaved = peak_live_activations(simulated("interleaved_1f1b", p, v, m, {}));
        for (int r = 0; r < p; ++r)
          EXPECT_EQ(interleaved[static_cast<std::size_t>(r)],
                    std::min(m * v, (v - 1) * k + 2 * (p - 1 - r) + 1))
              << case_of(p, v, m, {}) << ", rank " << r;
      }
    }
}

TEST(ScheduleFormulas, ZeroBubbleH1) {
  RandomSeconds random;
  for (const int p : {2, 3, 4, 8})
    for (int m = p; m <= 4 * p; ++m) {
      const Seconds cost = random.next();
      const int f = cost.forward, i = cost.input_grad, w = cost.weight_grad;
      const Timeline timeline = simulated("zb_h1", p, 1, m, cost);
      SCOPED_TRACE(case_of(p, 1, m, cost));
      if (m >= 2 * p) EXPECT_EQ(span_bubble(timeline), (p - 1) * std::max(f + i - w, i));
      EXPECT_EQ(makespan_bubble(timeline), (p - 1) * std::max({f + i - w, i, f}));
      EXPECT_THAT(peak_live_activations(timeline), Each(p));
    }
}

TEST(ScheduleFormulas, ZeroBubbleH2) {
  RandomSeconds random;
  for (const int p : {2, 3, 4, 8})
    for (int m = 2 * p; m <= 5 * p; ++m) {
      const Seconds cost = random.next();
      const int f = cost.forward, i = cost.input_grad, w = cost.weight_grad;
      const Timeline timeline = simulated("zb_h2", p, 1, m, cost);
      SCOPED_TRACE(case_of(p, 1, m, cost));
      EXPECT_EQ(span_bubble(timeline), (p - 1) * std::max({f + i - 2 * w, i - f, 0}));
      EXPECT_EQ(makespan_bubble(timeline), (p - 1) * std::max({f + i - 2 * w, f, i - f}));
      EXPECT_THAT(peak_live_activations(timeline), Each(2 * p - 1));
    }
  // Fewer than 2p - 1 micro-batches leave a bubble.
  for (int m = 1; m < 7; ++m)
    EXPECT_EQ(span_bubble(simulated("zb_h2", 4, 1, m, {})), 6 - (m - 1)) << m;
}

TEST(ScheduleFormulas, InterleavedZeroBubble) {
  RandomSeconds random;
  for (const int v : {1, 2, 3})
    for (const int p : {2, 3, 4, 6})
      for (int m = p; m <= 4 * p; ++m) {
        if (m % std::max(1, m / p) != 0) continue;
        const Seconds cost = random.next();
        const int f = cost.forward, i = cost.input_grad, w = cost.weight_grad;
        const Timeline timeline = simulated("interleaved_zero_bubble", p, v, m, cost);
        EXPECT_EQ(makespan_bubble(timeline), (p - 1) * std::max({f + i - w, i, f}))
            << case_of(p, v, m, cost);
        EXPECT_THAT(peak_live_activations(timeline), Each((v - 1) * (m / (m / p)) + p));
      }
}

TEST(ScheduleFormulas, Zbv) {
  for (const int p : {1, 2, 3, 4, 8})
    for (int m = 2 * p - 1; m <= 4 * p; ++m) {
      const Timeline timeline = simulated("zbv", p, 2, m, {});
      SCOPED_TRACE(case_of(p, 2, m, {}));
      EXPECT_EQ(span_bubble(timeline), 0);
      EXPECT_EQ(makespan(timeline), 6 * m + p - 1);
      EXPECT_THAT(peak_live_activations(timeline), Each(2 * p));
    }
  const auto span = [](int m, Seconds cost) {
    return span_bubble(simulated("zbv", 4, 2, m, cost));
  };
  for (const int m : {7, 12, 20}) {  // costs that differ leave a bubble, the same for every m
    EXPECT_EQ(span(m, {10, 11, 9}), 12);
    EXPECT_EQ(span(m, {12, 10, 8}), 22);
    EXPECT_EQ(span(m, {10, 20, 5}), 90);
  }
  EXPECT_EQ(span(1, {}), 12);
  EXPECT_EQ(span(3, {}), 8);
  EXPECT_EQ(span(4, {}), 6);
}

// A pair is one action: what its forward makes leaves at the end of both. Sent at the end of the
// forward, the bubble would be p - 1.
TEST(ScheduleFormulas, DualPipeV) {
  for (const int p : {2, 3, 4, 8})
    for (int m = 2 * p; m <= 4 * p; ++m) {
      const Timeline timeline = simulated("dualpipev", p, 2, m, {});
      SCOPED_TRACE(case_of(p, 2, m, {}));
      EXPECT_EQ(span_bubble(timeline), 2 * (p - 1));
      EXPECT_EQ(makespan_bubble(timeline), 2 * (p - 1));
      EXPECT_THAT(peak_live_activations(timeline), Each(2 * p + 1));
    }
}

// The published peak exactly. The bubbles are those of the authors' own program: at most 3p slots
// of V-Half and 4p of V-Min.
TEST(ScheduleFormulas, VHalfAndVMin) {
  for (int p = 2; p <= 12; ++p)
    for (const int m : {2 * p, 3 * p, 5 * p}) {
      const Timeline half = simulated("v_half", p, 2, m, {}), min = simulated("v_min", p, 2, m, {});
      SCOPED_TRACE(case_of(p, 2, m, {}));
      const auto most = [](const Timeline& timeline) {
        const auto peaks = peak_live_activations(timeline);
        return *std::max_element(peaks.begin(), peaks.end());
      };
      EXPECT_EQ(most(half), 2 * ((p + 2) / 2));
      EXPECT_EQ(most(min), 2 * ((p + 4) / 3));
      EXPECT_LE(makespan_bubble(half), std::max(p % 2 == 0 ? 3 * p - 7 : 3 * p - 4, 1));
      EXPECT_LE(makespan_bubble(min), p % 3 == 0 ? 4 * p - 7 : 4 * p - 5);
    }
}

// Any number of micro-batches runs.
TEST(ScheduleFormulas, VHalfAndVMinOfFewMicroBatches) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m < 2 * p; ++m)
      for (const char* name : {"v_half", "v_min"}) {
        const auto peaks = peak_live_activations(simulated(name, p, 2, m, {}));
        const int most = 2 * (std::string(name) == "v_half" ? (p + 2) / 2 : (p + 4) / 3);
        EXPECT_THAT(peaks, Each(testing::Le(std::min(2 * m, most)))) << name;
      }
}

}  // namespace
}  // namespace trestle::simulate
