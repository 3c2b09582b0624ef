#include "trestle/precision/gradient_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/device/device.h"

namespace trestle::precision {
namespace {

using testing::HasSubstr;

// tools/golden/make_gradient_scaler_goldens.py
nlohmann::json goldens() {
  return nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/precision/gradient_scaler.json"));
}

GradientScalerOptions options_of(const nlohmann::json& o) {
  return {.initial_scale = o["init_scale"],
          .growth_factor = o["growth_factor"],
          .backoff_factor = o["backoff_factor"],
          .growth_interval = o["growth_interval"]};
}

at::Tensor floats(const nlohmann::json& values) {
  return torch::tensor(values.get<std::vector<double>>(), at::kDouble).to(at::kFloat);
}

std::map<std::string, double> state_of(const nlohmann::json& state) { return state; }

TEST(GradientScaler, EqualsPythonInEveryStepAndState) {
  const at::Device there = virtual_devices(1)[0].torch;
  for (const at::Device device : {at::Device(at::kCPU), there}) {
    for (const auto& golden : goldens()["cases"]) {
      const at::Tensor parameter = at::zeros({6}).to(device).requires_grad_();
      torch::optim::SGD optimizer({parameter}, 0.1);
      GradientScaler scaler(options_of(golden["options"]));
      for (const auto& step : golden["steps"]) {
        EXPECT_EQ(scaler.scale(), step["scale"].get<double>());
        const bool bad = step["bad"];
        at::Tensor gradient = bad ? at::ones({6}) : floats(step["gradient"]);
        if (bad) gradient[3] = std::numeric_limits<float>::infinity();
        parameter.mutable_grad() = gradient.to(device);
        EXPECT_EQ(scaler.unscale({parameter}), !bad);
        if (!bad) {
          EXPECT_TRUE(parameter.grad().cpu().equal(floats(step["unscaled"])));
          optimizer.step();
        }
        EXPECT_TRUE(parameter.detach().cpu().equal(floats(step["parameter"])));
        scaler.update();
        EXPECT_EQ(scaler.state(), state_of(step["state"]));
      }
    }
  }
}

TEST(GradientScaler, ResumesFromPythonsState) {
  for (const auto& golden : goldens()["cases"]) {
    GradientScaler scaler;
    scaler.load_state(state_of(golden["steps"][9]["state"]));
    for (std::size_t i = 10; i < golden["steps"].size(); ++i) {
      const auto& step = golden["steps"][i];
      const at::Tensor parameter = at::zeros({6}).requires_grad_();
      parameter.mutable_grad() =
          step["bad"] ? at::full({6}, std::nan("")) : floats(step["gradient"]);
      scaler.unscale({parameter});
      scaler.update();
      EXPECT_EQ(scaler.state(), state_of(step["state"])) << i;
    }
  }
}

TEST(GradientScaler, SkipsTheStepForOneNonfiniteGradient) {
  GradientScaler scaler;
  const at::Tensor good = at::zeros({3}).requires_grad_(), bad = at::zeros({3}).requires_grad_();
  const at::Tensor without = at::zeros({3}).requires_grad_();
  good.mutable_grad() = at::ones({3});
  bad.mutable_grad() = at::full({3}, std::nan(""));
  EXPECT_FALSE(scaler.unscale({bad, without}));
  EXPECT_FALSE(scaler.unscale({good})) << "gradients of another stage count too";
  EXPECT_TRUE(good.grad().equal(at::full({3}, 1.0 / 65536)));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 32768);
  good.mutable_grad() = at::ones({3});
  EXPECT_TRUE(scaler.unscale({good, without}));
}

// A second division would make the step 65536 times too small without an error.
TEST(GradientScaler, DividesEachGradientOnce) {
  GradientScaler scaler;
  const at::Tensor one = at::zeros({3}).requires_grad_(), other = at::zeros({2}).requires_grad_();
  one.mutable_grad() = at::full({3}, 65536.0);
  other.mutable_grad() = at::full({2}, 65536.0);
  EXPECT_TRUE(scaler.unscale({one, one}));
  EXPECT_TRUE(one.grad().equal(at::ones({3})));
  try {
    scaler.unscale({other, one});
    FAIL() << "it was accepted";
  } catch (const StateError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameter 1, [3], was already unscaled"));
  }
  EXPECT_TRUE(one.grad().equal(at::ones({3})));
  EXPECT_TRUE(other.grad().equal(at::full({2}, 65536.0))) << "nothing was changed";
  EXPECT_TRUE(scaler.unscale({other}));
  scaler.update();
  EXPECT_TRUE(scaler.unscale({one, other})) << "of the next step";
}

TEST(GradientScaler, ScalesALossInFloat) {
  const GradientScaler scaler;
  const at::Tensor scaled = scaler.scale(at::full({}, 2, at::kHalf));
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<double>(), 131072);
}

template <class Error, class Action>
std::string message(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

// One step of a scaler with finite or infinite gradients.
void step(GradientScaler& scaler, bool good) {
  const at::Tensor parameter = at::zeros({1}).requires_grad_();
  parameter.mutable_grad() = at::full({1}, good ? 1.0 : std::numeric_limits<double>::infinity());
  EXPECT_EQ(scaler.unscale({parameter}), good);
  scaler.update();
}

// "+" is a good step and "-" an overflow. Returns the scale after each.
std::vector<double> scales(GradientScaler& scaler, const std::string& what) {
  std::vector<double> scales;
  for (const char one : what) {
    step(scaler, one == '+');
    scales.push_back(scaler.scale());
  }
  return scales;
}

// DeepSpeed's rules: an overflow within the hysteresis keeps the scale and restarts the window.
// Once the hysteresis is used up, every overflow shrinks the scale until it has grown.
TEST(GradientScaler, FollowsDeepspeedsHysteresis) {
  const GradientScalerOptions options = {
      .initial_scale = 16, .growth_interval = 3, .hysteresis = 2, .lowest_scale = 1};
  GradientScaler scaler(options);
  EXPECT_EQ(scales(scaler, "+++"), (std::vector<double>{16, 16, 32}));
  EXPECT_EQ(scales(scaler, "-++-"), (std::vector<double>{32, 32, 32, 16}));
  EXPECT_EQ(scales(scaler, "++-"), (std::vector<double>{16, 16, 8})) << "the hysteresis is used up";
  EXPECT_EQ(scales(scaler, "+++--"), (std::vector<double>{8, 8, 16, 16, 8})) << "it has grown";
  GradientScalerOptions consecutive = options;
  consecutive.consecutive_hysteresis = true;
  GradientScaler other(consecutive);
  EXPECT_EQ(scales(other, "-+-+--"), (std::vector<double>{16, 16, 16, 16, 16, 8}));
  EXPECT_EQ(scales(other, "-+-"), (std::vector<double>{4, 4, 4}));
}

TEST(GradientScaler, StopsOrFailsAtTheLowestScale) {
  GradientScaler floor({.initial_scale = 4, .lowest_scale = 1.5});
  EXPECT_EQ(scales(floor, "---"), (std::vector<double>{2, 1.5, 1.5}));
  GradientScaler fails(
      {.initial_scale = 4, .hysteresis = 2, .lowest_scale = 2, .fail_at_lowest = true});
  EXPECT_EQ(scales(fails, "--"), (std::vector<double>{4, 2}));
  EXPECT_THAT(message<StateError>([&] { step(fails, false); }),
              HasSubstr("overflow at the lowest loss scale, 2"));
  step(fails, true);  // the caller may continue
  GradientScaler fixed({.initial_scale = 8, .growth_interval = 1, .dynamic = false});
  EXPECT_EQ(scales(fixed, "+-+-"), (std::vector<double>{8, 8, 8, 8}));
}

TEST(GradientScaler, SavesOptionsThatPythonLacks) {
  const GradientScalerOptions options = {.initial_scale = 16,
                                         .growth_interval = 3,
                                         .hysteresis = 3,
                                         .lowest_scale = 0.7,
                                         .fail_at_lowest = true};
  GradientScaler scaler(options), other, pythons(options);
  scales(scaler, "++-");
  other.load_state(scaler.state());
  EXPECT_EQ(other.state(), scaler.state());
  EXPECT_EQ(scales(other, "--+++-----"), scales(scaler, "--+++-----"));
  EXPECT_THAT(message<StateError>([&] { scales(other, "---------"); }), HasSubstr("lowest"));
  EXPECT_EQ(other.scale(), static_cast<float>(0.7));
  scaler.load_state(other.state());
  EXPECT_EQ(scaler.state(), other.state());
  GradientScaler plain;
  pythons.load_state(plain.state());
  EXPECT_EQ(pythons.state().at("hysteresis"), 3) << "a state from Python keeps them";
  auto state = scaler.state();
  state["_hysteresis_tracker"] = 3;
  EXPECT_THAT(message<FormatError>([&] { scaler.load_state(state); }),
              HasSubstr("_hysteresis_tracker = 3"));
}

TEST(GradientScaler, RejectsInvalidOptions) {
  const auto refusal = [](const GradientScalerOptions& options) {
    return message<UsageError>([&] { const GradientScaler scaler(options); });
  };
  EXPECT_THAT(refusal({.initial_scale = 0}), HasSubstr("scale = 0"));
  EXPECT_THAT(refusal({.growth_factor = 1}), HasSubstr("growth_factor = 1 is not above 1"));
  EXPECT_THAT(refusal({.backoff_factor = 1}), HasSubstr("backoff_factor"));
  EXPECT_THAT(refusal({.growth_interval = 0}), HasSubstr("growth_interval"));
  EXPECT_THAT(refusal({.hysteresis = 0}), HasSubstr("hysteresis = 0 is not at least 1"));
  EXPECT_THAT(refusal({.initial_scale = 2, .lowest_scale = 4}), HasSubstr("lowest_scale = 4"));
  GradientScaler scaler;
  EXPECT_THAT(message<StateError>([&] { scaler.update(); }),
              HasSubstr("has unscaled no gradients"));
  const at::Tensor half = at::zeros({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({2}, at::kHalf);
  EXPECT_THAT(message<UsageError>([&] { scaler.unscale({half}); }), HasSubstr("fp16"));
  auto state = scaler.state();
  state.erase("_growth_tracker");
  EXPECT_THAT(message<FormatError>([&] { scaler.load_state(state); }),
              HasSubstr("lacks '_growth_tracker'"));
  state = scaler.state();
  state["scale"] = std::nan("");
  EXPECT_THAT(message<FormatError>([&] { scaler.load_state(state); }), HasSubstr("scale = nan"));
  state = scaler.state();
  state["_growth_tracker"] = -1;
  EXPECT_THAT(message<FormatError>([&] { scaler.load_state(state); }), HasSubstr("not a count"));
}

}  // namespace
}  // namespace trestle::precision
