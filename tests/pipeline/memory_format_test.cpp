// channels_last: gradients equal plain libtorch's, and every value keeps the format across every
// cut.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/nn/loss.h"
#include "trestle/optim/factory.h"

namespace trestle {
namespace {

using support::distance;

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

// conv, norm, relu, pool, transposed conv, joined with a skip: in plain libtorch and as layers.
struct SkipConvNet {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 6, 3).padding(1)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(6, 6, 3).padding(1).groups(2)};
  torch::nn::ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(6, 6, 2).stride(2)};
  torch::nn::Conv2d last{torch::nn::Conv2dOptions(12, 4, 1)};

  SkipConvNet() {
    for (auto& parameter : parameters()) parameter.set_data(parameter.to(at::kDouble));
    norm->to(at::kDouble);
  }
  std::vector<at::Tensor> parameters() const {
    return {first->weight, first->bias, norm->weight, norm->bias,   second->weight,
            second->bias,  up->weight,  up->bias,     last->weight, last->bias};
  }
  at::Tensor plain(const at::Tensor& x) {
    const auto fine = torch::relu(norm(first(x)));
    const auto coarse = second(torch::max_pool2d(fine, 2));
    return last(torch::cat({up(coarse), fine}, 1));
  }
  nn::Layers layers() {
    nn::Layers net;
    net.add("first", first);
    net.add("norm", norm);
    net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true))).keep_output("fine");
    net.add("pool", torch::nn::MaxPool2d(2));
    net.add("second", second);
    net.add("up", up);
    net.add("join",
            [](at::Tensor x, at::Tensor fine) {
              return torch::cat({x, fine}, 1);
            })
        .take("fine");
    net.add("last", last);
    return net;
  }
};

SkipConvNet make_skip_conv_net() {
  torch::manual_seed(9);
  return {};
}

at::Tensor format_images() {
  torch::manual_seed(2);
  return torch::randn({7, 3, 8, 12}, at::kDouble);
}
at::Tensor format_classes() {
  torch::manual_seed(3);
  return torch::randint(4, {7, 8, 12});
}

// The plain model's gradients over the same micro-batches in torch's default memory format.
std::vector<at::Tensor> expected_gradients(int pieces) {
  SkipConvNet net = make_skip_conv_net();
  const auto x = format_images().tensor_split(pieces), y = format_classes().tensor_split(pieces);
  for (int i = 0; i < pieces; ++i) {
    const auto loss = torch::cross_entropy_loss(net.plain(x[i]), y[i]);
    (loss * (static_cast<double>(x[i].size(0)) / 7)).backward();
  }
  std::vector<at::Tensor> result;
  for (const auto& parameter : net.parameters()) result.push_back(parameter.grad());
  return result;
}

TEST(MemoryFormat, GivesEqualGradientsUnderEveryPlan) {
  for (const int pieces : {1, 3}) {
    const auto expected = expected_gradients(pieces);
    for (const std::vector<int>& balance : {std::vector<int>{8}, {3, 5}, {1, 3, 4}, {2, 2, 2, 2}}) {
      for (const std::string schedule : {"gpipe", "1f1b"}) {
        for (const Recompute mode : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
          for (const bool plain_cpu : {false, true}) {
            const int stages = static_cast<int>(balance.size());
            SkipConvNet own = make_skip_conv_net();
            Pipeline pipeline(
                own.layers(),
                {.devices = plain_cpu ? std::vector<Device>{cpu_device()} : virtual_devices(stages),
                 .balance = balance,
                 .micro_batches = pieces,
                 .schedule = schedule,
                 .recompute = mode,
                 .numerics = {.memory_format = channels_last}});
            pipeline.step(format_images(), format_classes(), nn::cross_entropy());
            const auto parameters = own.parameters();
            for (std::size_t i = 0; i < parameters.size(); ++i)
              EXPECT_LE(distance(parameters[i].grad(), expected[i]), 1e-12)
                  << schedule << " " << stages << " stages, parameter " << i;
          }
        }
      }
    }
  }
}

TEST(MemoryFormat, GivesEqualInputGradientInCallersBackward) {
  SkipConvNet plain = make_skip_conv_net();
  const auto x = format_images().requires_grad_();
  plain.plain(x).square().mean().backward();
  SkipConvNet own = make_skip_conv_net();
  Pipeline pipeline(own.layers(), {.devices = virtual_devices(2),
                                   .balance = {3, 5},
                                   .numerics = {.memory_format = channels_last}});
  const auto y = format_images().requires_grad_();
  pipeline.forward(y).square().mean().backward();
  EXPECT_LE(distance(y.grad(), x.grad()), 1e-12);
  EXPECT_TRUE(y.grad().is_contiguous()) << "the caller's tensor keeps its own format";
}

// The memory formats of a layer's input and of the gradient of its output, in each stage.
struct Formats {
  std::mutex mutex;
  int forward = 0, backward = 0, others = 0;
  void see(const at::Tensor& tensor, int& count) {
    const std::lock_guard lock(mutex);
    ++(tensor.is_contiguous(channels_last) && !tensor.is_contiguous() ? count : others);
  }
};

struct Look : torch::autograd::Function<Look> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            Formats* formats) {
    context->saved_data["formats"] = reinterpret_cast<std::int64_t>(formats);
    formats->see(x, formats->forward);
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* formats = reinterpret_cast<Formats*>(context->saved_data["formats"].toInt());
    formats->see(gradients[0], formats->backward);
    return {gradients[0], at::Tensor()};
  }
};

TEST(MemoryFormat, IsKeptAcrossEveryBoundary) {
  for (const Recompute mode : {Recompute::Never, Recompute::Always}) {
    Formats formats;
    nn::Layers net;
    torch::manual_seed(1);
    for (int i = 0; i < 3; ++i) {
      const std::string number = std::to_string(i);
      net.add("look" + number, [&](at::Tensor x) { return Look::apply(x, &formats); });
      net.add("conv" + number,
              torch::nn::Conv2d(torch::nn::Conv2dOptions(i == 0 ? 3 : 5, 5, 3).padding(1)));
    }
    Pipeline pipeline(net, {.devices = virtual_devices(3),
                            .balance = {2, 2, 2},
                            .micro_batches = 2,
                            .recompute = mode,
                            .numerics = {.memory_format = channels_last}});
    pipeline.step(torch::randn({4, 3, 6, 6}), torch::randint(5, {4, 6, 6}), nn::cross_entropy());
    EXPECT_GE(formats.forward, 6);
    EXPECT_GE(formats.backward, 4);  // the first stage's input needs no gradient
    EXPECT_EQ(formats.others, 0);
  }
}

TEST(MemoryFormat, KeepsParameterObjectsAndOptimizerResults) {
  SkipConvNet plain = make_skip_conv_net();
  SkipConvNet own = make_skip_conv_net();
  const auto before = own.parameters();
  Pipeline pipeline(own.layers(), {.devices = virtual_devices(2),
                                   .balance = {3, 5},
                                   .numerics = {.memory_format = channels_last}});
  EXPECT_TRUE(before[0].is_contiguous(channels_last));
  EXPECT_TRUE(before[0].is_same(own.first->weight));
  torch::optim::AdamW theirs(plain.parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW ours(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    theirs.zero_grad();
    torch::cross_entropy_loss(plain.plain(format_images()), format_classes()).backward();
    theirs.step();
    ours.zero_grad();
    pipeline.step(format_images(), format_classes(), nn::cross_entropy());
    ours.step();
  }
  const auto expected = plain.parameters(), found = own.parameters();
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_LE(distance(found[i], expected[i]), 1e-9) << "parameter " << i;
}

// Fused kernels read weight, gradient and state in the same memory order.
TEST(MemoryFormat, KeepsFusedOptimizerResults) {
  for (const std::string name : {"rmsprop", "adamw", "sgd"}) {
    const auto train = [&](at::MemoryFormat format) {
      torch::manual_seed(5);
      torch::nn::Conv2d conv(torch::nn::Conv2dOptions(8, 8, 3).padding(1));
      nn::Layers net;
      net.add("conv", conv);
      Pipeline pipeline(net,
                        {.devices = virtual_devices(1), .numerics = {.memory_format = format}});
      const auto optimizer = optim::make_optimizer(
          pipeline.parameters(), {.name = name, .learning_rate = 1e-2, .momentum = 0.9});
      torch::manual_seed(6);
      const auto x = torch::randn({4, 8, 6, 6});
      for (int step = 0; step < 3; ++step) {
        pipeline.zero_grad();
        pipeline.step(x, torch::randint(8, {4, 6, 6}), nn::cross_entropy());
        optimizer->step();
      }
      return conv->weight.detach().cpu().contiguous();
    };
    EXPECT_LE(distance(train(channels_last), train(at::MemoryFormat::Preserve)), 1e-5) << name;
  }
}

TEST(MemoryFormat, RefusesOtherFormats) {
  SkipConvNet own = make_skip_conv_net();
  EXPECT_THROW(
      Pipeline(own.layers(), {.numerics = {.memory_format = at::MemoryFormat::ChannelsLast3d}}),
      UsageError);
}

}  // namespace
}  // namespace trestle
