#include "trestle/device/weight_kernel.h"

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "trestle/device/seeded.h"

namespace trestle::device {
namespace {

// Adds 1 to torch's result, and counts its calls.
struct PlusOne : WeightKernel {
  at::Tensor run(const WeightCall& call) override {
    ++calls;
    return call.plain(call.input, call.weight, call.bias) + 1;
  }
  int calls = 0;
};

std::shared_ptr<PlusOne> give_kernel(const at::Tensor& weight, WeightOperator of) {
  auto kernel = std::make_shared<PlusOne>();
  set_weight_kernel(weight, of, kernel);
  return kernel;
}

// Modules of torch that call an operator in each way.
struct Case {
  std::string name;
  WeightOperator of = WeightOperator::Product;
  at::Tensor weight, x;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

template <class Holder>
Case case_of(const std::string& name, WeightOperator of, Holder module, at::Tensor x) {
  return {name, of, module->weight, std::move(x),
          [module](const at::Tensor& given) mutable { return module->forward(given); }};
}

std::vector<Case> cases() {
  using namespace torch::nn;
  return seeded(3, [] {
    const at::Tensor image = torch::randn({2, 3, 6, 6});
    const at::Tensor ids = torch::arange(6).view({2, 3});
    const Linear bare(LinearOptions(4, 5).bias(false));
    Linear functional(4, 5);
    std::vector<Case> all = {
        case_of("linear 2-d", WeightOperator::Product, Linear(4, 5), torch::randn({2, 4})),
        case_of("linear 3-d", WeightOperator::Product, Linear(4, 5), torch::randn({2, 3, 4})),
        case_of("linear without bias", WeightOperator::Product, bare, torch::randn({2, 4})),
        case_of("conv1d", WeightOperator::Convolution, Conv1d(3, 4, 3), torch::randn({2, 3, 6})),
        case_of("conv2d", WeightOperator::Convolution, Conv2d(3, 4, 3), image),
        case_of("conv2d same", WeightOperator::Convolution,
                Conv2d(Conv2dOptions(3, 4, 3).padding(torch::kSame)), image),
        case_of("conv3d", WeightOperator::Convolution, Conv3d(3, 4, 2),
                torch::randn({1, 3, 4, 4, 4})),
        case_of("conv_transpose1d", WeightOperator::Convolution, ConvTranspose1d(3, 4, 2),
                torch::randn({2, 3, 6})),
        case_of("conv_transpose2d", WeightOperator::Convolution, ConvTranspose2d(3, 4, 2), image),
        case_of("conv_transpose3d", WeightOperator::Convolution, ConvTranspose3d(3, 4, 2),
                torch::randn({1, 3, 4, 4, 4})),
        case_of("embedding", WeightOperator::Lookup, Embedding(8, 4), ids)};
    all.push_back({"at::linear", WeightOperator::Product, functional->weight,
                   torch::randn({2, 3, 4}), [functional](const at::Tensor& x) {
                     return at::linear(x, functional->weight, functional->bias);
                   }});
    return all;
  });
}

at::Tensor gradient_of(const Case& one) {
  one.weight.mutable_grad() = at::Tensor();
  one.forward(one.x).pow(2).sum().backward();
  return one.weight.grad().clone();
}

at::Tensor under_autocast(const Case& one) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::Tensor y = one.forward(one.x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  return y;
}

TEST(WeightKernel, RunsForItsWeightInEachMode) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const at::Tensor plain = one.forward(one.x), cast = under_autocast(one);
    const auto kernel = give_kernel(one.weight, one.of);
    // A Linear may add its bias to the kernel's result, which rounds otherwise.
    EXPECT_TRUE(at::allclose(one.forward(one.x), plain + 1, 1e-5, 1e-5));
    const at::Tensor cast_again = under_autocast(one);
    EXPECT_EQ(cast_again.scalar_type(), cast.scalar_type());
    EXPECT_TRUE(at::allclose(cast_again, cast + 1, 0.02, 0.02));
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::allclose(one.forward(one.x), plain + 1, 1e-5, 1e-5));
    }
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(at::allclose(one.forward(one.x), plain + 1, 1e-5, 1e-5));
    }
    EXPECT_EQ(kernel->calls, 4);
    // y + 1 to the power of 2: the backward runs through the kernel's result.
    const at::Tensor gradient = gradient_of(one);
    set_weight_kernel(one.weight, one.of, nullptr);
    one.weight.mutable_grad() = at::Tensor();
    (one.forward(one.x) + 1).pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(gradient, one.weight.grad(), 1e-5, 1e-5));
    EXPECT_EQ(kernel->calls, 5);
  }
}

TEST(WeightKernel, OtherWeightsComputeTheSameToTheBit) {
  std::vector<at::Tensor> results, gradients, casts;
  for (const Case& one : cases()) {
    results.push_back(one.forward(one.x));
    gradients.push_back(gradient_of(one));
    casts.push_back(under_autocast(one));
  }
  for (const Case& one : cases()) give_kernel(one.weight, one.of);
  std::size_t i = 0;
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const at::Tensor y = one.forward(one.x);
    EXPECT_TRUE(at::equal(y, results[i]));
    EXPECT_EQ(y.grad_fn()->name(), results[i].grad_fn()->name());
    EXPECT_TRUE(at::equal(gradient_of(one), gradients[i]));
    EXPECT_TRUE(at::equal(under_autocast(one), casts[i]));
    ++i;
  }
}

TEST(WeightKernel, StaysWithTheTensorObject) {
  torch::nn::Linear layer(4, 5);
  const auto kernel = give_kernel(layer->weight, WeightOperator::Product);
  mark_as_slice(layer->weight);
  mark_as_whole(layer->bias, "bias");
  layer->weight.register_hook([](const at::Tensor& gradient) { return gradient; });
  layer->weight.set_data(torch::ones({5, 4}));
  layer->to(at::kDouble);
  layer->forward(torch::ones({2, 4}, at::kDouble));
  EXPECT_EQ(kernel->calls, 1);
  EXPECT_TRUE(is_slice(layer->weight));
  EXPECT_EQ(weight_kernel(layer->weight, WeightOperator::Product), kernel);
  EXPECT_EQ(weight_kernel(layer->weight, WeightOperator::Lookup), nullptr);
  const at::Tensor copy = layer->weight.clone();
  EXPECT_EQ(weight_kernel(copy, WeightOperator::Product), nullptr);
  EXPECT_FALSE(is_slice(copy));
  EXPECT_EQ(name_of_whole(layer->bias), "bias");
  EXPECT_EQ(name_of_whole(layer->weight), "");
  copy_weight_kernels(layer->weight, copy);
  EXPECT_EQ(weight_kernel(copy, WeightOperator::Product), kernel);
  EXPECT_TRUE(is_slice(copy));
}

// A program's own use of the weight is no call of its layer.
TEST(WeightKernel, OtherOperatorsAreTorchs) {
  torch::nn::Linear layer(4, 4);
  const at::Tensor x = torch::ones({4, 4}), plain = x.mm(layer->weight);
  const auto kernel = give_kernel(layer->weight, WeightOperator::Product);
  const at::Tensor y = x.mm(layer->weight);
  EXPECT_TRUE(at::equal(y, plain));
  const at::Tensor input = torch::ones({4, 4}).requires_grad_(true);
  input.mm(layer->weight).sum().backward();  // its gradient is a product with weight.t()
  EXPECT_TRUE(at::allclose(input.grad(), x.mm(layer->weight.detach().clone().t())));
  EXPECT_TRUE(at::equal(layer->weight.t().t().sum(), layer->weight.sum()));
  EXPECT_TRUE(at::equal(at::addmm(x, x, layer->weight.t(), 2, 1),
                        at::addmm(x, x, layer->weight.detach().clone().t(), 2, 1)));
  EXPECT_EQ(kernel->calls, 0);
}

TEST(WeightKernel, AnExceptionLeavesTheNextCallAlone) {
  struct Throws : WeightKernel {
    at::Tensor run(const WeightCall&) override { throw std::runtime_error("no"); }
  };
  torch::nn::Linear layer(4, 4), other(4, 4);
  set_weight_kernel(layer->weight, WeightOperator::Product, std::make_shared<Throws>());
  const auto kernel = give_kernel(other->weight, WeightOperator::Product);
  EXPECT_THROW(layer->forward(torch::ones({2, 4})), std::runtime_error);
  other->forward(torch::ones({2, 4}));
  EXPECT_EQ(kernel->calls, 1);
}

}  // namespace
}  // namespace trestle::device
