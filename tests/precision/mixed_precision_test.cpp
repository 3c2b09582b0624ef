// Pipelines in bf16 and fp16 equal plain torch under autocast, for any plan.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/pipeline/small_nets.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/find_nonfinite.h"
#include "trestle/precision/cpu_support.h"
#include "trestle/precision/gradient_scaler.h"

namespace trestle {
namespace {

using small::expect_equal;
using small::gradients_of;
using support::input;
using support::target;
using testing::HasSubstr;

nn::Layers net() {
  nn::Layers layers;
  layers.add("first", small::linear(1, at::kFloat));
  layers.add("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({support::width})));
  layers.add("tanh", torch::nn::Tanh());
  layers.add("second", small::linear(2, at::kFloat));
  layers.add("last", small::linear(3, at::kFloat));
  return layers;
}

struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

// torch's own autocast with its own switches, over the same micro-batches. Its operator lists for
// the CPU and for other devices differ: only the second one has layer_norm.
Outcome plain(at::Device device, std::optional<at::ScalarType> type) {
  nn::Layers model = net();
  for (const nn::Layer& layer : model.graph().layers) layer.to(device);
  Outcome outcome;
  const auto pieces = input(at::kFloat).to(device).chunk(small::micro_batches);
  const auto targets = target().to(device).chunk(small::micro_batches);
  const at::ScalarType before = at::autocast::get_autocast_dtype(device.type());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    at::autocast::set_autocast_enabled(device.type(), type.has_value());
    at::autocast::set_autocast_dtype(device.type(), type.value_or(before));
    at::autocast::increment_nesting();
    const at::Tensor loss =
        at::cross_entropy_loss(model.forward(pieces[i]).to(at::kFloat), targets[i]);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device.type(), false);
    (loss / small::micro_batches).backward();
    outcome.loss += loss.item<double>() / small::micro_batches;
  }
  at::autocast::set_autocast_dtype(device.type(), before);
  outcome.gradients = gradients_of(model);
  return outcome;
}

struct Plan {
  std::vector<Device> devices;
  std::string schedule;
  Recompute recompute;
};
std::vector<Plan> plans() {
  std::vector<Plan> all;
  for (const auto& devices : {virtual_devices(2), std::vector<Device>(2, cpu_device())})
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always})
        all.push_back({devices, schedule, recompute});
  return all;
}

Pipeline pipeline_of(const nn::Layers& model, const Plan& plan, Precision precision) {
  return Pipeline(model, {.devices = plan.devices,
                          .balance = {3, 2},
                          .micro_batches = small::micro_batches,
                          .schedule = plan.schedule,
                          .recompute = plan.recompute,
                          .plan = {.backward_order = BackwardOrder::Forward},
                          .numerics = {.precision = precision}});
}

void expect_close(const Outcome& expected, const Outcome& actual, double tolerance) {
  EXPECT_NEAR(expected.loss, actual.loss, tolerance);
  expect_equal(expected.gradients, actual.gradients, tolerance);
}

TEST(MixedPrecision, EqualsPlainTorchUnderAutocast) {
  const auto all = plans();
  for (const auto& [precision, type] :
       {std::pair(Precision::BFloat16, at::kBFloat16), std::pair(Precision::Float16, at::kHalf)}) {
    for (const Plan& plan : all) {
      const at::Device device = plan.devices[0].torch;
      const Outcome expected = plain(device, type);
      EXPECT_NE(expected.loss, plain(device, std::nullopt).loss) << "autocast changed the result";
      const nn::Layers model = net();
      Pipeline pipeline = pipeline_of(model, plan, precision);
      const double loss = pipeline.step(input(at::kFloat), target(), nn::cross_entropy()).loss;
      expect_close(expected, {loss, gradients_of(model)}, 1e-6);
      for (const at::Tensor& parameter : model.parameters()) {
        EXPECT_EQ(parameter.scalar_type(), at::kFloat);
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      }
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    }
  }
}

TEST(MixedPrecision, EqualsItWithACallersBackwardOutside) {
  for (const Plan& plan : plans()) {
    if (plan.schedule != "gpipe") continue;
    const nn::Layers stepped = net(), driven = net();
    pipeline_of(stepped, plan, Precision::BFloat16)
        .step(input(at::kFloat), target(), nn::cross_entropy());
    Pipeline pipeline = pipeline_of(driven, plan, Precision::BFloat16);
    const at::Tensor y = pipeline.forward(input(at::kFloat));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    at::cross_entropy_loss(y.to(at::kFloat), target().to(y.device())).backward();
    expect_equal(gradients_of(stepped), gradients_of(driven), 1e-6);
  }
}

TEST(MixedPrecision, AppliesToEvaluation) {
  const Plan plan = {virtual_devices(2), "gpipe", Recompute::Never};
  const nn::Layers model = net();
  EXPECT_EQ(pipeline_of(model, plan, Precision::BFloat16).evaluate(input(at::kFloat)).scalar_type(),
            at::kBFloat16);
  EXPECT_EQ(pipeline_of(model, plan, Precision::Float32).evaluate(input(at::kFloat)).scalar_type(),
            at::kFloat);
}

TEST(MixedPrecision, UsesStepsInTheNextForward) {
  for (const Plan& plan : plans()) {
    const nn::Layers model = net();
    Pipeline pipeline = pipeline_of(model, plan, Precision::BFloat16);
    const auto loss = [&] {
      return pipeline.step(input(at::kFloat), target(), nn::cross_entropy()).loss;
    };
    const double before = loss();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model.parameters()) parameter.mul_(0);
    }
    EXPECT_NE(loss(), before);
    EXPECT_NEAR(loss(), std::log(static_cast<double>(support::width)), 1e-6);
  }
}

// Gradients that underflow in fp16 are kept with a scale, and equal the unscaled ones.
TEST(MixedPrecision, KeepsSmallGradientsWithAScale) {
  const auto tiny = nn::additive("tiny", [](const at::Tensor& y, const at::Tensor&) {
    return y.to(at::kFloat).square().mean() * 1e-7;
  });
  const auto gradients = [&](Precision precision, precision::GradientScaler* scaler) {
    const nn::Layers model = net();
    Pipeline pipeline =
        pipeline_of(model, {virtual_devices(2), "1f1b", Recompute::ExceptLast}, precision);
    pipeline.step(input(at::kFloat), at::Tensor(), tiny,
                  {.gradient_scale = scaler != nullptr ? scaler->scale() : 1});
    if (scaler != nullptr) {
      EXPECT_TRUE(scaler->unscale(pipeline.parameters()));
    }
    return gradients_of(model);
  };
  precision::GradientScaler scaler({.initial_scale = 1 << 24});
  const auto exact = gradients(Precision::Float32, nullptr);
  const auto scaled = gradients(Precision::Float16, &scaler);
  const auto lost = gradients(Precision::Float16, nullptr);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double size = exact[i].abs().max().item<double>();
    EXPECT_LT(support::distance(exact[i], scaled[i]), 0.02 * size);
    EXPECT_GT(support::distance(exact[i], lost[i]), i == 0 ? 0.2 * size : -1);
  }
}

TEST(MixedPrecision, HasTheNamesOfRecipes) {
  for (const std::string& name : precision::precision_names())
    EXPECT_NO_THROW(precision::parse_precision(name));
  EXPECT_THAT(support::message_of<UsageError>([] { precision::parse_precision("bf61"); }),
              HasSubstr("did you mean 'bf16'?"));
  EXPECT_TRUE(precision::cpu_supports(Precision::Float32));
}

TEST(FindNonfinite, NamesTheFirstNonfiniteTensor) {
  const nn::Layers model = net();
  Pipeline pipeline =
      pipeline_of(model, {virtual_devices(2), "gpipe", Recompute::Never}, Precision::Float32);
  const at::Tensor x = input(at::kFloat);
  const auto step = [&] { pipeline.step(x, target(), nn::cross_entropy()); };
  step();
  EXPECT_THAT(find_nonfinite({x}, pipeline), HasSubstr("and the loss is not"));
  EXPECT_EQ(find_nonfinite_gradient(pipeline), "");
  EXPECT_THAT(find_nonfinite({x / 0}, pipeline), HasSubstr("input 0 has values"));
  const at::NoGradGuard no_grad;
  // After tanh all values are near 1, so 'second' overflows in any order of summation.
  pipeline.stage_parameters(0)[3].fill_(3);
  at::Tensor weight = pipeline.stage_parameters(1)[0];
  weight.fill_(3e38);
  {
    const at::AutoGradMode grad(true);
    step();
  }
  EXPECT_THAT(find_nonfinite({x}, pipeline),
              HasSubstr("the output of layer 'second' in stage 1 is the first"));
  EXPECT_THAT(find_nonfinite_gradient(pipeline), HasSubstr("the gradient of 'last."));
  weight.fill_(std::nan(""));
  EXPECT_THAT(find_nonfinite({x}, pipeline), HasSubstr("parameter 'second.weight' in stage 1"));
}

}  // namespace
}  // namespace trestle
