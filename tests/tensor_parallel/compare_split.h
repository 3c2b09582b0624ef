#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/tensor_parallel/checks.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/nn/graph.h"
#include "trestle/tensor_parallel/split_plan.h"

// A net that a plan splits beside the plain net.
namespace trestle::testing::comparing {

using tensor_parallel::Split, tensor_parallel::SplitRule, tensor_parallel::TensorRanks;
using Rules = std::vector<SplitRule>;
using MakeNet = std::function<nn::Layers()>;

// Modules are created in double as long as it lives.
struct InDouble {
  InDouble() { c10::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~InDouble() { c10::set_default_dtype(caffe2::TypeMeta::Make<float>()); }
};

inline void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-9, 1e-10))
      << what << ": " << (a - b).abs().max();
}

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return seeded(seed, [&] { return torch::randn(sizes); });
}

enum class Mode { Train, Evaluate };

// A net's results on one batch: output, gradients, and buffers afterwards.
struct Results {
  at::Tensor output;
  std::map<std::string, at::Tensor> parameters, gradients, buffers;
};

inline Results run(nn::Layers& net, const at::Tensor& x, Mode mode) {
  if (mode == Mode::Train)
    net.train();
  else
    net.eval();
  Results results;
  for (const auto& [name, tensor] : net.named_parameters())
    results.parameters[name] = tensor.detach().clone();
  results.output = net.forward(x);
  const at::Tensor with = random(results.output.sizes(), 3).to(results.output.scalar_type());
  (results.output * with).sum().backward();
  for (const auto& [name, tensor] : net.named_parameters())
    if (tensor.requires_grad()) results.gradients[name] = tensor.grad();
  for (const auto& [name, tensor] : net.named_buffers())
    results.buffers[name] = tensor.detach().clone();
  return results;
}

inline void expect_same(const Results& split, const Results& plain,
                        const nn::ParameterSlices& slices) {
  const auto own = [&](const std::string& name, const at::Tensor& whole) {
    const auto found = slices.find(name);
    return found == slices.end() ? whole : slice_of(whole, found->second);
  };
  expect_near(split.output.detach(), plain.output.detach(), "output");
  ASSERT_EQ(split.gradients.size(), plain.gradients.size());
  for (const auto& [name, tensor] : split.parameters)
    EXPECT_TRUE(at::equal(tensor, own(name, plain.parameters.at(name)))) << name;
  for (const auto& [name, tensor] : split.gradients) {
    ASSERT_TRUE(tensor.defined()) << name;
    expect_near(tensor, own(name, plain.gradients.at(name)), name);
  }
  for (const auto& [name, tensor] : split.buffers)
    expect_near(tensor, own(name, plain.buffers.at(name)), name);
}

// In double: a net that a plan splits has the plain net's output, gradients and statistics.
inline void compare(const MakeNet& make, const Rules& rules, int ranks, const at::Tensor& x,
                    Mode mode = Mode::Train) {
  nn::Layers plain = make();
  const Results expected = run(plain, x, mode);
  spawn(ranks, [&](World& world) {
    nn::Layers net = make();
    tensor_parallel::split(net, TensorRanks(world.group()), rules);
    const Results results = run(net, x, mode);
    const nn::ParameterSlices slices = nn::slices_of(net.graph());
    EXPECT_EQ(slices.empty(), ranks == 1);
    expect_same(results, expected, slices);
  });
}

inline nn::Layers mlp(std::int64_t middle) {
  return seeded(5, [&] {
    using namespace torch::nn;
    return nn::Layers(Sequential(Linear(6, middle), ReLU(), Linear(middle, 6)));
  });
}

// The message of the refusal of a plan; "no error" where it fits.
inline std::string plan_refusal(const MakeNet& make, const Rules& rules, int ranks = 2) {
  nn::Layers net = make();
  const std::string message =
      refusal_of([&] { tensor_parallel::split(net, TensorRanks::on_paper(0, ranks), rules); });
  if (message != "no error") {
    EXPECT_TRUE(nn::slices_of(net.graph()).empty());
  }
  return message;
}

}  // namespace trestle::testing::comparing
