#include "trestle/models/toy.h"

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::models {

namespace {

at::Tensor tanh(const at::Tensor& x) { return at::tanh(x); }
at::Tensor toy_relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor flatten(const at::Tensor& x) { return x.flatten(1); }
at::Tensor add(const at::Tensor& x, const at::Tensor& skip) { return x + skip; }

auto linear(std::int64_t in, std::int64_t out) {
  return [=] { return torch::nn::Linear(in, out); };
}

auto dropout(double p) {
  return [=] { return torch::nn::Dropout(p); };
}

// A layer with three arguments.
struct MixImpl : torch::nn::Module {
  explicit MixImpl(std::int64_t width)
      : linear(register_module("linear", torch::nn::Linear(3 * width, width))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& first, const at::Tensor& second) {
    return linear(at::cat({x, first, second}, 1)).tanh();
  }

  torch::nn::Linear linear;
};

}  // namespace

nn::Layers toy(const ToyOptions& options) {
  const std::int64_t w = options.width;
  nn::Layers net(nn::Seed{options.seed});
  net.add("in", linear(options.features, w));
  net.add("tanh1", tanh).keep_output("hidden");
  net.add("drop1", dropout(options.dropout));
  net.add("mid1", linear(w, w));
  net.add("add", add).take("hidden");
  net.add("tanh2", tanh);
  net.add("drop2", dropout(options.dropout)).keep_input("before");
  net.add("mid2", linear(w, w));
  net.add("mix", [w] { return std::make_shared<MixImpl>(w); }).take("hidden").take("before");
  net.add("out", linear(w, options.classes));
  return net;
}

nn::Layers mlp(const MlpOptions& options) {
  if (options.depth < 0)
    throw UsageError(text("the depth of an MLP is ", options.depth, ": it must not be negative"));
  nn::Layers net(nn::Seed{options.seed});
  net.add("flatten", flatten);
  std::int64_t in = options.features;
  for (int layer = 1; layer <= options.depth; ++layer) {
    net.add(text("linear", layer), linear(in, options.width));
    net.add(text("relu", layer), toy_relu);
    in = options.width;
  }
  net.add("out", linear(in, options.classes));
  return net;
}

nn::Layers two_linears(const TwoLinearsOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("net1", linear(options.features, options.width));
  net.add("relu", toy_relu);
  net.add("net2", linear(options.width, options.classes));
  return net;
}

std::vector<tensor_parallel::SplitRule> toy_plan() {
  using tensor_parallel::Split;
  return {{.layer = "in", .split = Split::ColumnsGathered},
          {.layer = "mid*", .split = Split::ColumnsGathered},
          {.layer = "mix.linear", .split = Split::ColumnsGathered},
          {.layer = "out", .split = Split::ColumnsGathered}};
}

std::vector<tensor_parallel::SplitRule> mlp_plan(const MlpOptions& options) {
  using tensor_parallel::Split;
  std::vector<tensor_parallel::SplitRule> plan;
  for (int layer = 1; layer <= options.depth; layer += 2) {
    plan.push_back({.layer = text("linear", layer), .split = Split::Columns});
    const bool is_last = layer == options.depth;
    plan.push_back({.layer = is_last ? "out" : text("linear", layer + 1), .split = Split::Rows});
  }
  return plan;
}

std::vector<tensor_parallel::SplitRule> two_linears_plan() {
  using tensor_parallel::Split;
  return {{.layer = "net1", .split = Split::Columns}, {.layer = "net2", .split = Split::Rows}};
}

}  // namespace trestle::models
