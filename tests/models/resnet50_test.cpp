#include "trestle/models/resnet50.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/module.h>

#include <cmath>

#include "tests/support/golden.h"
#include "trestle/base/error.h"

namespace trestle::models {
namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

Shapes shapes_of(const NamedTensors& named) {
  Shapes shapes;
  for (const auto& [name, tensor] : named) shapes.emplace_back(name, tensor.sizes().vec());
  return shapes;
}

Shapes shapes_of(const nlohmann::json& list) {
  Shapes shapes;
  for (const auto& [name, shape] : list.get<std::vector<std::pair<std::string, nlohmann::json>>>())
    shapes.emplace_back(name, shape.get<std::vector<std::int64_t>>());
  return shapes;
}

TEST(ResNet50, HasTorchvisionsNamesShapesAndOrder) {
  const nn::Layers net = resnet50();
  EXPECT_EQ(net.parameter_count(), 25'557'032);
  const nlohmann::json expected = golden::load("resnet50");
  EXPECT_EQ(expected["parameter_count"], 25'557'032);
  EXPECT_EQ(shapes_of(net.named_parameters()), shapes_of(expected["parameters"]));
  EXPECT_EQ(shapes_of(net.named_buffers()), shapes_of(expected["buffers"]));
}

TEST(ResNet50, CanBeCutAfterLayer2AndBetweenAnyTwoBlocks) {
  std::vector<std::string> names;
  for (const nn::Layer& layer : resnet50({.width = 4}).graph().layers) names.push_back(layer.name);
  EXPECT_THAT(
      names, testing::ElementsAre("conv1", "bn1", "relu", "maxpool", "layer1.0", "layer1.1",
                                  "layer1.2", "layer2.0", "layer2.1", "layer2.2", "layer2.3",
                                  "layer3.0", "layer3.1", "layer3.2", "layer3.3", "layer3.4",
                                  "layer3.5", "layer4.0", "layer4.1", "layer4.2", "avgpool", "fc"));
}

void expect_numbers(const at::Tensor& actual, const nlohmann::json& expected) {
  const at::Tensor flat = actual.detach().flatten().to(at::kDouble);
  ASSERT_EQ(flat.numel(), static_cast<std::int64_t>(expected.size()));
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    EXPECT_NEAR(flat[i].item<double>(), expected[static_cast<std::size_t>(i)].get<double>(), 2e-4)
        << i;
}

TEST(ResNet50, SameWeightsGivePythonsLogitsAndGradients) {
  const nlohmann::json expected = golden::load("resnet50")["narrow"];
  nn::Layers net =
      resnet50({.classes = expected["options"]["classes"], .width = expected["options"]["width"]});
  golden::set_formula_weights(net.named_parameters());
  // In double precision: libtorch's single-precision kernels take half a minute for a narrow net.
  for (const nn::Layer& layer : net.graph().layers)
    if (layer.module) layer.module->to(at::kDouble);
  const at::Tensor x =
      golden::formula_input(expected["input"].get<std::vector<std::int64_t>>()).to(at::kDouble);
  const at::Tensor target =
      golden::formula_classes({x.size(0)}, expected["options"]["classes"].get<std::int64_t>());
  const at::Tensor logits = net.forward(x);
  expect_numbers(logits, expected["logits"]);
  const at::Tensor loss = nn::cross_entropy().value(logits, target);
  EXPECT_NEAR(loss.item<double>(), expected["loss"].get<double>(), 1e-4);
  loss.backward();
  double largest = 0;
  for (const auto& norm : expected["gradient_norms"])
    largest = std::max(largest, norm.get<double>());
  for (const auto& [name, parameter] : net.named_parameters()) {
    const double norm = expected["gradient_norms"].at(name);
    EXPECT_NEAR(parameter.grad().to(at::kDouble).norm().item<double>(), norm,
                1e-3 * std::max(norm, 1e-3 * largest))
        << name;
  }
  net.eval();
  expect_numbers(net.forward(x), expected["evaluated"]);
}

TEST(ResNet50, InitialWeightsFollowTorchvisionsRules) {
  for (const auto& [name, parameter] : resnet50({.classes = 10, .width = 32}).named_parameters()) {
    const at::Tensor value = parameter.detach();
    if (value.dim() == 4) {
      const double fan_out = static_cast<double>(value.size(0) * value.size(2) * value.size(3));
      const double expected = std::sqrt(2 / fan_out);
      // For n normal numbers the mean is within 5 / sqrt(n), the deviation within 5 / sqrt(2 n).
      const double off = 5 / std::sqrt(static_cast<double>(value.numel()));
      EXPECT_NEAR(value.mean().item<double>(), 0, off * expected) << name;
      EXPECT_NEAR(value.std().item<double>(), expected, off * expected) << name;
    } else if (name == "fc.weight" || name == "fc.bias") {
      const double bound = 1 / std::sqrt(1024.0);
      EXPECT_LE(value.abs().max().item<double>(), bound) << name;
      EXPECT_GT(value.abs().max().item<double>(), 0.5 * bound) << name;
    } else {
      EXPECT_TRUE(value.eq(name.ends_with("weight") ? 1 : 0).all().item<bool>()) << name;
    }
  }
}

TEST(ResNet50, RejectsSizesThatAreNotPositive) {
  EXPECT_THROW(resnet50({.width = 0}), UsageError);
  EXPECT_THROW(resnet50({.classes = -1}), UsageError);
}

}  // namespace
}  // namespace trestle::models
