#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <complex>
#include <memory>
#include <thread>

#include "tests/recompute/same_as_plain.h"
#include "trestle/base/error.h"
#include "trestle/recompute/checkpointed.h"

// Kinds of functions, and the ownership of what they capture.
namespace trestle {
namespace {

using Body = std::function<Tensor(Tensor)>;

void expect_plain(const Body& body, const Tensor& x, const Tensors& parameters) {
  const auto sum = [](const Tensor& y) { return at::real(y * y).sum(); };
  const auto expected = outcome([&](Tensor a) { return sum(body(a)); }, x, parameters);
  for (const bool early : {true, false}) {
    expect_equal(expected,
                 outcome([&](Tensor a) { return sum(checkpoint({.early_stop = early}, body, a)); },
                         x, parameters));
  }
  // Nested, and with more operators after it.
  const auto deeper = outcome([&](Tensor a) { return sum(body(a).exp().sin()); }, x, parameters);
  expect_equal(
      deeper,
      outcome(
          [&](Tensor a) {
            return sum(checkpoint([&](Tensor b) { return checkpoint(body, b).exp(); }, a).sin());
          },
          x, parameters));
}

TEST(CheckpointKinds, RecurrentNetsAndAttention) {
  torch::manual_seed(5);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 5).num_layers(2).dropout(0.4));
  expect_plain([&](Tensor a) { return std::get<0>(lstm->forward(a)); }, leaf({4, 3, 6}),
               lstm->parameters());
  torch::nn::GRU gru(torch::nn::GRUOptions(6, 5).bidirectional(true));
  expect_plain([&](Tensor a) { return std::get<0>(gru->forward(a)); }, leaf({4, 3, 6}),
               gru->parameters());
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2).dropout(0.2));
  expect_plain([&](Tensor a) { return std::get<0>(attention->forward(a, a, a)); }, leaf({4, 2, 8}),
               attention->parameters());
  torch::nn::TransformerEncoderLayer encoder(
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.3));
  expect_plain([&](Tensor a) { return encoder->forward(a); }, leaf({4, 2, 8}),
               encoder->parameters());
}

TEST(CheckpointKinds, ConvolutionsPoolsIndexesAndComplexNumbers) {
  torch::manual_seed(5);
  torch::nn::Sequential conv(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)), torch::nn::BatchNorm2d(4),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::MaxPool2d(2),
      torch::nn::ConvTranspose2d(4, 2, 2), torch::nn::GroupNorm(1, 2), torch::nn::Dropout2d(0.4));
  expect_plain([&](Tensor a) { return conv->forward(a); }, leaf({3, 2, 8, 8}), conv->parameters());
  expect_plain([&](Tensor a) { return conv->forward(a); },
               leaf({3, 2, 8, 8}).to(at::MemoryFormat::ChannelsLast).detach().requires_grad_(),
               conv->parameters());
  torch::nn::Embedding embedding(10, 4);
  expect_plain(
      [&](Tensor a) {
        const Tensor index = at::arange(6).view({2, 3});
        return embedding->forward(index).sum() *
               a.index({index}).index_fill(0, at::tensor({std::int64_t{1}}), 3);
      },
      leaf({6}), embedding->parameters());
  expect_plain([](Tensor a) { return at::fft_fft(a).abs() + at::fft_rfft(a * a).abs().sum(); },
               leaf({3, 8}), {});
  expect_plain([](Tensor a) { return std::get<0>(a.mm(a.t()).sort(1)).cumsum(0).prod(1); },
               leaf({3, 4}), {});
  expect_plain(
      [](Tensor a) {
        Tensor b = a * 2;
        b.narrow(0, 0, 1).mul_(2);  // in place, on a view
        b[1].add_(a[0]);
        return b.t().reshape({-1}).clamp(0, 3);
      },
      leaf({3, 4}), {});
}

TEST(CheckpointKinds, AnyTypeWithAForward) {
  torch::manual_seed(5);
  torch::nn::Linear linear(4, 4);
  nn::Layers net;
  net.add("linear", linear);
  net.add("norm", torch::nn::BatchNorm1d(4));
  torch::nn::AnyModule any(linear);
  const auto model = nn::Checkpointed::every(1, net);
  const Tensor x = leaf({3, 4});
  const auto expected =
      outcome([&](Tensor a) { return net.forward(a).sin().sum(); }, x, net.parameters());
  expect_equal(expected, outcome([&](Tensor a) { return checkpoint(net, a).sin().sum(); }, x,
                                 net.parameters()));
  expect_equal(expected, outcome([&](Tensor a) { return checkpoint(model, a).sin().sum(); }, x,
                                 net.parameters()));
  expect_equal(
      outcome([&](Tensor a) { return linear->forward(a).exp().sum(); }, x, net.parameters()),
      outcome([&](Tensor a) { return checkpoint(any, a).exp().sum(); }, x, net.parameters()));
}

// An error of plain autograd is an error here too.
TEST(CheckpointKinds, ASavedTensorThatTheFunctionChangesItself) {
  const Tensor y = checkpoint(
      [](Tensor a) {
        Tensor b = a.exp();
        b.mul_(2);
        return b.sum();
      },
      leaf({3}));
  EXPECT_THAT(error_of<StateError>([&] { y.backward(); }),
              HasSubstr("tensor 0 that it saved ([3]"));
}

struct UnpacksTwice : torch::autograd::Function<UnpacksTwice> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor a, Tensor b) {
    const Tensor product = a * b;
    context->save_for_backward({a, b, product});
    return product.exp();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto once = context->get_saved_variables();
    const auto twice = context->get_saved_variables();  // recomputes the function once more
    const Tensor g = gradients[0] * once[2].exp();
    return {g * twice[1], g * twice[0]};
  }
};

TEST(CheckpointKinds, AnAutogradFunctionThatUnpacksTwice) {
  expect_plain([](Tensor a) { return UnpacksTwice::apply(a.sin(), a.cos()); }, leaf({5}), {});
}

// Sharded training needs this: no parameter may be "marked ready twice".
TEST(CheckpointKinds, AParametersHooksRunOnceForABackward) {
  torch::nn::Linear net(4, 4);
  int accumulated = 0, gradients = 0;
  const auto accumulator = torch::autograd::impl::grad_accumulator(net->weight);
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [&](const auto& outputs, const auto&) {
        ++accumulated;
        return outputs;
      }));
  net->weight.register_hook([&](const Tensor&) { ++gradients; });
  const auto body = [&](Tensor a) { return net->forward(a).tanh(); };
  const Tensor x = leaf({2, 4});
  const Tensor y =
      checkpoint([&](Tensor a) { return checkpoint(body, body(a)); }, checkpoint(body, x));
  y.sum().backward();
  EXPECT_EQ(accumulated, 1);
  EXPECT_EQ(gradients, 1);
}

TEST(CheckpointKinds, AnOptimizerInTheBackwardMayStep) {
  torch::manual_seed(5);
  const auto train = [](bool with) {
    torch::manual_seed(6);
    torch::nn::Linear one(4, 4), two(4, 4);
    std::vector<torch::autograd::variable_list> keep;
    for (Tensor p : {one->weight, one->bias, two->weight, two->bias}) {
      torch::autograd::impl::grad_accumulator(p)->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [p](const auto& outputs, const auto&) mutable {
                const at::NoGradGuard no_grad;
                p.sub_(p.grad() * 0.1);
                p.mutable_grad() = Tensor();
                return outputs;
              }));
    }
    const Tensor x = at::randn({3, 4});
    Tensor y;
    for (int i = 0; i < 3; ++i) {
      const auto body = [&](Tensor a) { return two->forward(one->forward(a).tanh()).tanh(); };
      // The accumulators live as long as a graph does.
      y = with ? checkpoint(body, x) : body(x);
      y.sum().backward();
    }
    return Tensors{y.detach(), one->weight.detach(), two->bias.detach()};
  };
  expect_equal(train(false), train(true));
}

TEST(CheckpointKinds, TheGraphOwnsTheFunction) {
  const auto held = std::make_shared<int>(1);
  const auto body = [held](Tensor a) { return a.sin().exp() * *held; };
  {
    const Tensor y = checkpoint(body, leaf({3}));
    EXPECT_EQ(held.use_count(), 3);
    y.sum().backward();
    EXPECT_EQ(held.use_count(), 2);  // freed with the saved tensors of the graph
  }
  checkpoint(body, leaf({3}));  // freed without a backward too
  EXPECT_EQ(held.use_count(), 2);
  const Tensor plus = checkpoint([held](Tensor a) { return a + *held; }, leaf({3}));
  EXPECT_EQ(held.use_count(), 2);  // saves nothing, so it will not be recomputed
}

TEST(CheckpointKinds, BackwardInAnotherThread) {
  const Tensor x = leaf({16});
  const Tensor y = checkpoint([](Tensor a) { return at::dropout(a, 0.5, true).sin(); }, x);
  const Tensor z = (y * 2).sum();
  std::thread([&] { z.backward(); }).join();
  EXPECT_TRUE(at::equal(x.grad() != 0, y != 0));
}

TEST(CheckpointKinds, WithAnomalyDetection) {
  const torch::autograd::DetectAnomalyGuard anomaly;
  expect_plain([](Tensor a) { return a.sin().exp(); }, leaf({4}), {});
}

TEST(CheckpointKinds, OneFunctionThatCallsItself) {
  const std::function<Tensor(Tensor, int)> halve = [&](Tensor a, int depth) -> Tensor {
    if (depth == 0) return at::dropout(a.sin(), 0.2, true);
    const auto half = a.chunk(2);
    return at::cat({checkpoint(halve, half[0], depth - 1), checkpoint(halve, half[1], depth - 1)});
  };
  const std::function<Tensor(Tensor, int)> plain = [&](Tensor a, int depth) -> Tensor {
    if (depth == 0) return at::dropout(a.sin(), 0.2, true);
    const auto half = a.chunk(2);
    return at::cat({plain(half[0], depth - 1), plain(half[1], depth - 1)});
  };
  const Tensor x = leaf({32});
  expect_equal(outcome([&](Tensor a) { return plain(a, 4).sum(); }, x, {}),
               outcome([&](Tensor a) { return halve(a, 4).sum(); }, x, {}));
}

}  // namespace
}  // namespace trestle
