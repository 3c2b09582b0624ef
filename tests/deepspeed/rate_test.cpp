#include "trestle/deepspeed/config/rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"

namespace trestle::deepspeed {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
void take(const json& options, const char* name, T& to) {
  to = options.value(name, to);
}

DeepspeedSchedule deepspeed_options(const std::string& type, const json& given) {
  DeepspeedSchedule o{.type = type};
  take(given, "warmup_min_lr", o.warmup_min_lr);
  take(given, "warmup_max_lr", o.warmup_max_lr);
  take(given, "warmup_num_steps", o.warmup_num_steps);
  take(given, "warmup_type", o.warmup_type);
  take(given, "total_num_steps", o.total_num_steps);
  take(given, "warmup_min_ratio", o.warmup_min_ratio);
  take(given, "cos_min_ratio", o.cos_min_ratio);
  take(given, "cycle_min_lr", o.cycle_min_lr);
  take(given, "cycle_max_lr", o.cycle_max_lr);
  take(given, "cycle_first_step_size", o.cycle_first_step_size);
  o.cycle_second_step_size = given.value("cycle_second_step_size", o.cycle_first_step_size);
  take(given, "cycle_first_stair_count", o.cycle_first_stair_count);
  o.cycle_second_stair_count = given.value("cycle_second_stair_count", o.cycle_first_stair_count);
  take(given, "decay_step_size", o.decay_step_size);
  take(given, "decay_lr_rate", o.decay_lr_rate);
  take(given, "cycle_momentum", o.cycle_momentum);
  take(given, "cycle_min_mom", o.cycle_min_mom);
  take(given, "cycle_max_mom", o.cycle_max_mom);
  take(given, "decay_mom_rate", o.decay_mom_rate);
  take(given, "lr_range_test_min_lr", o.lr_range_test_min_lr);
  take(given, "lr_range_test_step_rate", o.lr_range_test_step_rate);
  take(given, "lr_range_test_step_size", o.lr_range_test_step_size);
  take(given, "lr_range_test_staircase", o.lr_range_test_staircase);
  return o;
}

// tools/golden/make_deepspeed_rate_goldens.py. A rate that falls to 0 is a difference of larger
// numbers, so the tolerance is relative to the largest one.
TEST(DeepspeedRate, EqualsDeepspeedInEveryStep) {
  const json goldens = json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/optim/deepspeed_rates.json"));
  ASSERT_EQ(goldens["schedules"].size(), 15u);
  for (const json& golden : goldens["schedules"]) {
    const DeepspeedRate rate(golden["base"], deepspeed_options(golden["type"], golden["options"]));
    for (std::size_t i = 0; i < golden["rates"].size(); ++i) {
      const auto step = static_cast<std::int64_t>(i);
      EXPECT_NEAR(rate.at(step), golden["rates"][i].get<double>(), 1e-17)
          << golden["type"] << golden["options"] << " step " << step;
      const json& momentum = golden["momenta"][i];
      ASSERT_EQ(rate.momentum_at(step).has_value(), !momentum.is_null()) << golden["options"];
      if (momentum.is_null()) continue;
      EXPECT_DOUBLE_EQ(*rate.momentum_at(step), momentum.get<double>())
          << golden["options"] << " step " << step;
    }
  }
}

TEST(DeepspeedRate, RejectsInvalidOptions) {
  EXPECT_THAT(deepspeed_schedules(), ElementsAre("WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                                                 "OneCycle", "LRRangeTest"));
  const auto message_of = [](double base, DeepspeedSchedule options) -> std::string {
    try {
      DeepspeedRate rate(base, std::move(options));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message_of(1, {.type = "WarmupRL"}), HasSubstr("did you mean 'WarmupLR'?"));
  EXPECT_THAT(message_of(1, {.warmup_type = "cubic"}), HasSubstr("unknown warmup_type 'cubic'"));
  EXPECT_THAT(message_of(1, {.warmup_num_steps = 0}),
              HasSubstr("schedule 'WarmupLR': warmup_num_steps = 0 is not at least 1"));
  EXPECT_THAT(message_of(1, {.warmup_max_lr = std::numeric_limits<double>::infinity()}),
              HasSubstr("is not finite"));
  EXPECT_THAT(message_of(-1, {}), HasSubstr("the optimizer's rate = -1"));
  EXPECT_THAT(message_of(1, {.type = "WarmupDecayLR"}), HasSubstr("total_num_steps"));
  EXPECT_THAT(message_of(1, {.type = "WarmupCosineLR"}), HasSubstr("total_num_steps"));
  EXPECT_THAT(message_of(1, {.type = "OneCycle", .cycle_first_step_size = 0}),
              HasSubstr("cycle_first_step_size"));
  EXPECT_THAT(message_of(1, {.type = "OneCycle", .cycle_max_mom = 1}), HasSubstr("in [0, 1)"));
  EXPECT_THAT(message_of(1, {.type = "LRRangeTest", .lr_range_test_step_size = 0}),
              HasSubstr("lr_range_test_step_size"));
  EXPECT_THROW(DeepspeedRate(1, {}).at(-1), UsageError);
  EXPECT_THROW(DeepspeedRate(1, {}).momentum_at(-1), UsageError);
}

}  // namespace
}  // namespace trestle::deepspeed
