#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/models/resnet.h"
#include "trestle/models/toy.h"
#include "trestle/models/unet.h"
#include "trestle/models/unet3d.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"

// The fixtures of tests/golden/nets: results of Python torch and torchgpipe for nets of
// trestle/models (tools/golden/make_net_goldens.py). Both sides compute weights, inputs and targets
// exactly by one formula.
//
//   const golden::Case golden = golden::load_case("unet");
//   golden::set_formula_weights(golden.net.named_parameters());
//   const at::Tensor loss = golden.loss.value(golden.net.forward(golden.input), golden.target);
//   loss.backward();
//   golden::expect_step(golden, "whole", loss, golden.net.named_parameters());
namespace trestle::golden {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Element `position` of the sequence `key`, in [-1, 1): an integer hash.
inline double formula(std::uint64_t position, std::uint64_t key) {
  constexpr std::uint64_t mask = 0xffffffff;
  std::uint64_t x = (position * 2654435761U + ((key + 1) * 2246822519U & mask)) & mask;
  x ^= x >> 15;
  x = x * 2246822519U & mask;
  x ^= x >> 13;
  x = x * 3266489917U & mask;
  x ^= x >> 16;
  return static_cast<double>(x) / 2147483648.0 - 1.0;
}

inline at::Tensor formula_doubles(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor tensor = at::empty(shape, at::kDouble);
  auto* data = tensor.data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = formula(i, key);
  return tensor;
}

inline at::Tensor formula_input(at::IntArrayRef shape, std::uint64_t key = 1000) {
  return formula_doubles(shape, key).to(at::kFloat);
}

inline at::Tensor formula_classes(at::IntArrayRef shape, std::int64_t classes,
                                  std::uint64_t key = 1001) {
  return ((formula_doubles(shape, key) + 1) / 2 * classes).floor().to(at::kLong);
}

// In the list's order: variance 1 / fan-in for weights of two or more dimensions, near 1 for other
// "weight"s, near 0 for all else. Works on any device.
inline void set_formula_weights(const Named& parameters) {
  const at::NoGradGuard no_grad;
  for (std::size_t key = 0; key < parameters.size(); ++key) {
    const auto& [name, parameter] = parameters[key];
    at::Tensor value = formula_doubles(parameter.sizes(), key);
    if (parameter.dim() >= 2) {
      value *= std::sqrt(3.0 / static_cast<double>(parameter.numel() / parameter.size(0)));
    } else {
      value *= 0.2;
      if (name.ends_with("weight")) value += 1;
    }
    parameter.copy_(value.to(at::kFloat));
  }
}

inline nlohmann::json load(const std::string& file) {
  return nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/nets/" + file + ".json"));
}

struct Case {
  nlohmann::json
      content;     // chunks, balance, key.seed, key.step, one_step.<run>, curves.<optimizer>
  nn::Layers net;  // with its own initial weights, in training mode
  at::Tensor input;
  at::Tensor target;
  nn::Loss loss;
};

// "unet" (width 4, 8 images of 32 x 48), "unet_odd" (35 x 49, so that the padding runs),
// "unet3d" and "unet3d_odd" (width 4, depth 2, 4 volumes),
// "resnet18_flat" (width 8, 32 images), "toy" (12 samples, no dropout) or "toy_dropout" (0.3).
inline Case load_case(const std::string& file) {
  Case c;
  c.content = load(file);
  const std::string net = c.content["net"];
  const std::int64_t width = c.content["options"]["width"];
  if (net == "unet") c.net = models::unet({.width = width});
  if (net == "unet3d") {
    const nlohmann::json& options = c.content["options"];
    models::UNet3dOptions unet3d_options{.width = width, .depth = options["depth"]};
    for (const auto& level : options["pooling"]) {
      unet3d_options.pooling.push_back(level.get<models::Pooling>());
    }
    c.net = models::unet3d(unet3d_options);
  }
  if (net == "resnet18_flat") c.net = models::resnet18_flat({.width = width});
  if (net == "toy") {
    c.net = models::toy({.width = width, .dropout = c.content["options"].value("dropout", 0.0)});
  }
  c.input = formula_input(c.content["input"].get<std::vector<std::int64_t>>());
  c.target = formula_classes(c.content["target"].get<std::vector<std::int64_t>>(),
                             c.content["classes"].get<std::int64_t>());
  c.loss = nn::make_loss(c.content["loss"].get<std::string>());
  return c;
}

// The case with formula weights in double precision, as the curves were computed: in single
// precision, ten steps differ more between CPUs' kernels than by an error.
inline Case load_case_for_curves(const std::string& file) {
  Case c = load_case(file);
  set_formula_weights(c.net.named_parameters());
  for (const auto& layer : c.net.graph().layers)
    if (layer.module) layer.module->to(at::kDouble);
  c.input = c.input.to(at::kDouble);
  return c;
}

// Expects the loss and every parameter's gradient of one step of Python's run: "whole" (unsplit
// batch), "looped" (the plain net over `chunks` micro-batches, one loss on all outputs) or
// "torchgpipe" (two CPU stages, `chunks` micro-batches, except_last). `tolerance` is relative to
// each gradient's norm. A gradient that is tiny beside the largest is compared relative to the
// largest.
inline void expect_step(const Case& golden, const std::string& run, const at::Tensor& loss,
                        const Named& parameters, double tolerance = 2e-5) {
  const nlohmann::json& expected = golden.content["one_step"].at(run);
  const double expected_loss = expected["loss"];
  EXPECT_NEAR(loss.item<double>(), expected_loss, 2e-6 * std::abs(expected_loss)) << run;
  const nlohmann::json& gradients = expected["gradients"];
  ASSERT_EQ(parameters.size(), gradients.size());
  double largest = 0;
  for (const auto& gradient : gradients) {
    largest = std::max(largest, gradient["norm"].get<double>());
  }
  for (const auto& [name, parameter] : parameters) {
    ASSERT_TRUE(gradients.contains(name)) << name;
    ASSERT_TRUE(parameter.grad().defined()) << name;
    const double norm = gradients[name]["norm"];
    const double allowed = tolerance * std::max(norm, 1e-3 * largest);
    const at::Tensor gradient = parameter.grad().cpu().to(at::kDouble).reshape(-1);
    EXPECT_NEAR(gradient.norm().item<double>(), norm, allowed) << run << " " << name;
    const nlohmann::json& probes = gradients[name]["probes"];
    for (std::size_t i = 0; i < probes.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i) * 7919 % gradient.numel();
      EXPECT_NEAR(gradient[at].item<double>(), probes[i].get<double>(), allowed)
          << run << " " << name << "[" << at << "]";
    }
  }
}

}  // namespace trestle::golden
