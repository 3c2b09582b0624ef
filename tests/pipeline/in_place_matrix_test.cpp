// In-place layers x taps x cuts x devices x recompute modes x autocast. The oracle is plain
// libtorch without layers, stages or micro-batches.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/all_plans.h"
#include "trestle/base/error.h"

namespace trestle {
namespace {

using support::add;
using support::distance;
using support::input;
using support::message_of;
using support::name_of;
using support::options_of;
using support::Parts;
using support::Plan;
using support::plans;
using support::target;
using ::testing::HasSubstr;

enum class Tap { None, BeforeRelu, AfterRelu };

// Three linear layers; a ReLU and a skip connection follow the first.
nn::Layers layers(const Parts& parts, bool in_place, Tap tap) {
  nn::Layers net;
  auto first = net.add("first", parts.linear[0]);
  if (tap == Tap::BeforeRelu) first.keep_output("s");
  auto relu = net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(in_place)));
  if (tap == Tap::AfterRelu) relu.keep_output("s");
  net.add("second", parts.linear[1]);
  if (tap != Tap::None) net.add("join", add).take("s");
  net.add("third", parts.linear[2]);
  return net;
}

struct LossAndGradients {
  double loss = 0;
  std::vector<at::Tensor> gradients;  // of the parameters and of the input
};

void collect(LossAndGradients& outcome, const Parts& parts) {
  for (const auto& linear : parts.linear) {
    for (const auto& parameter : linear->parameters())
      outcome.gradients.push_back(parameter.grad().defined() ? parameter.grad().cpu().clone()
                                                             : at::Tensor());
  }
}

void autocast(bool enabled) {
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
  at::autocast::set_autocast_enabled(at::kPrivateUse1, enabled);
  if (!enabled) at::autocast::clear_cache();
}

// The same net in plain libtorch on the whole batch.
LossAndGradients plain(bool in_place, Tap tap, bool with_autocast, at::ScalarType dtype) {
  const Parts parts(dtype);
  const at::Tensor x = input(dtype).requires_grad_();
  autocast(with_autocast);
  const at::Tensor first = parts.linear[0]->forward(x);
  const at::Tensor relu = in_place ? first.relu_() : first.relu();
  at::Tensor y = parts.linear[1]->forward(relu);
  if (tap == Tap::BeforeRelu) y = y + first;
  if (tap == Tap::AfterRelu) y = y + relu;
  y = parts.linear[2]->forward(y);
  autocast(false);
  const at::Tensor loss = torch::nn::functional::cross_entropy(y.to(dtype), target());
  loss.backward();
  LossAndGradients outcome{.loss = loss.item<double>(), .gradients = {}};
  collect(outcome, parts);
  outcome.gradients.push_back(x.grad());
  return outcome;
}

void expect_close(const LossAndGradients& expected, const LossAndGradients& actual,
                  double tolerance) {
  EXPECT_NEAR(expected.loss, actual.loss, tolerance * std::max(1.0, std::abs(expected.loss)));
  ASSERT_LE(actual.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < actual.gradients.size(); ++i) {
    ASSERT_TRUE(actual.gradients[i].defined()) << "no gradient for parameter " << i;
    const double scale = expected.gradients[i].abs().max().item<double>();
    EXPECT_LT(distance(expected.gradients[i], actual.gradients[i]), tolerance * (scale + 1e-3))
        << "parameter " << i;
  }
}

// Runs step() twice, so that the second run uses what the first one learnt.
void check_step(const Plan& plan, bool in_place, Tap tap, bool with_autocast, at::ScalarType dtype,
                const LossAndGradients& expected, double tolerance) {
  const Parts parts(dtype);
  Pipeline pipeline(layers(parts, in_place, tap), options_of(plan, 4));
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(text("step ", round));
    pipeline.zero_grad();
    autocast(with_autocast);
    const auto loss = nn::additive("cross_entropy", [&](const at::Tensor& y, const at::Tensor& t) {
      return torch::nn::functional::cross_entropy(y.to(dtype), t);
    });
    LossAndGradients actual{.loss = pipeline.step(input(dtype), target(), loss).loss,
                            .gradients = {}};
    autocast(false);
    collect(actual, parts);
    expect_close(expected, actual, tolerance);
  }
}

// Runs a caller's backward, which gives the input's gradient too.
void check_backward(const Plan& plan, bool in_place, Tap tap, bool with_autocast,
                    at::ScalarType dtype, const LossAndGradients& expected, double tolerance) {
  const Parts parts(dtype);
  Pipeline pipeline(layers(parts, in_place, tap), options_of(plan, 3));
  const at::Tensor x = input(dtype).requires_grad_();
  autocast(with_autocast);
  const at::Tensor y = pipeline.forward(x);
  autocast(false);
  const at::Tensor loss =
      torch::nn::functional::cross_entropy(y.to(dtype), target().to(y.device()));
  loss.backward();
  LossAndGradients actual{.loss = loss.item<double>(), .gradients = {}};
  collect(actual, parts);
  actual.gradients.push_back(x.grad());
  expect_close(expected, actual, tolerance);
}

class InPlaceMatrix : public ::testing::TestWithParam<std::tuple<bool, Tap, bool>> {};

TEST_P(InPlaceMatrix, EqualsPlainLibtorchOrIsRefusedUnderEveryPlan) {
  const support::WatchDog dog("in place", std::chrono::seconds(100));
  const auto [in_place, tap, with_autocast] = GetParam();
  // Autocast rounds to bfloat16; a wrong or missing gradient is far above the tolerance.
  const auto dtype = with_autocast ? at::kFloat : at::kDouble;
  const double tolerance = with_autocast ? 0.04 : 1e-9;
  const bool refused = in_place && tap == Tap::BeforeRelu;
  const LossAndGradients expected = plain(in_place, tap, with_autocast, dtype);
  for (const Plan& plan : plans(tap == Tap::None ? 4 : 5)) {
    SCOPED_TRACE(name_of(plan));
    if (!refused) {
      check_step(plan, in_place, tap, with_autocast, dtype, expected, tolerance);
      check_backward(plan, in_place, tap, with_autocast, dtype, expected, tolerance);
      continue;
    }
    const Parts parts(dtype);
    Pipeline pipeline(layers(parts, in_place, tap), options_of(plan, 4));
    EXPECT_THAT(
        message_of<UsageError>([&] { pipeline.step(input(dtype), target(), nn::cross_entropy()); }),
        HasSubstr("layer 'relu' writes into the value that 'join' takes as \"s\""));
  }
}

std::string matrix_name(const ::testing::TestParamInfo<std::tuple<bool, Tap, bool>>& info) {
  const auto [in_place, tap, with_autocast] = info.param;
  const char* taps[] = {"NoTap", "TapBefore", "TapAfter"};
  return text(in_place ? "InPlace" : "OutOfPlace", taps[static_cast<int>(tap)],
              with_autocast ? "Autocast" : "");
}
INSTANTIATE_TEST_SUITE_P(All, InPlaceMatrix,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Tap::None, Tap::BeforeRelu,
                                                              Tap::AfterRelu),
                                            ::testing::Bool()),
                         matrix_name);

}  // namespace
}  // namespace trestle
