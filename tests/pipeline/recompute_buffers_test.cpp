// Recomputation of layers that read and update buffers, compared with plain libtorch.
#include <gtest/gtest.h>

#include "tests/pipeline/small_nets.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using small::expect_equal;
using small::gradients_of;
using small::input;
using small::linear;
using small::micro_batches;
using small::target;
using small::width;

// Reads a buffer, then updates it, as spectral norm and moving averages do.
struct CountsImpl : torch::nn::Module {
  CountsImpl() : n(register_buffer("n", torch::ones({}, at::kDouble))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor scale = n.clone();
    n.add_(1);
    return x * scale;
  }
  at::Tensor n;
};
TORCH_MODULE(Counts);

TEST(Recompute, RestoresBufferThatLayerReadsAndUpdates) {
  for (const auto recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
    SCOPED_TRACE(schedule::to_string(recompute));
    // In plain libtorch, micro-batch m is scaled by 1 + m.
    auto first = linear(1);
    auto last = linear(2);
    const auto x = input().chunk(micro_batches);
    const auto y = target().chunk(micro_batches);
    at::Tensor loss = torch::zeros({}, at::kDouble);
    for (int m = 0; m < micro_batches; ++m) {
      loss = loss + torch::nn::functional::cross_entropy(
                        last->forward(first->forward(x[m]) * (1 + m)), y[m]) /
                        micro_batches;
    }
    loss.backward();
    nn::Layers net;
    net.add("first", linear(1));
    const Counts counts;
    net.add("counts", counts);
    net.add("last", linear(2));
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {1, 2},
                            .micro_batches = micro_batches,
                            .recompute = recompute});
    const auto result = pipeline.step(input(), target(), nn::cross_entropy());
    EXPECT_NEAR(result.loss, loss.item<double>(), 1e-10);
    expect_equal({first->weight.grad(), first->bias.grad(), last->weight.grad(), last->bias.grad()},
                 gradients_of(net), 1e-10);
    EXPECT_EQ(counts->n.item<double>(), 1 + micro_batches);
  }
}

// Updates a buffer, then multiplies by it: the graph saves the buffer itself.
struct AveragesImpl : torch::nn::Module {
  AveragesImpl() : s(register_buffer("s", torch::ones({width}, at::kDouble))) {}
  at::Tensor forward(at::Tensor x) {
    {
      const torch::NoGradGuard no_grad;
      s.mul_(0.5).add_(x.detach().abs().mean(0), 0.5);
    }
    return x * s;
  }
  at::Tensor s;
};
TORCH_MODULE(Averages);

TEST(Recompute, KeepsBufferSavedByGraphUntilBackward) {
  // In plain libtorch: forward and backward of one micro-batch after another.
  auto first = linear(1);
  auto last = linear(2);
  at::Tensor s = torch::ones({width}, at::kDouble);
  const auto x = input().chunk(micro_batches);
  const auto y = target().chunk(micro_batches);
  for (int m = 0; m < micro_batches; ++m) {
    const at::Tensor h = first->forward(x[m]);
    s = s * 0.5 + h.detach().abs().mean(0) * 0.5;
    (torch::nn::functional::cross_entropy(last->forward(h * s), y[m]) / micro_batches).backward();
  }
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    nn::Layers net;
    net.add("first", linear(1));
    net.add("averages", Averages());
    net.add("last", linear(2));
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {1, 2},
                            .micro_batches = micro_batches,
                            .schedule = schedule,
                            .recompute = Recompute::Always});
    pipeline.step(input(), target(), nn::cross_entropy());
    expect_equal({first->weight.grad(), first->bias.grad(), last->weight.grad(), last->bias.grad()},
                 gradients_of(net), 1e-10);
  }
}

}  // namespace
}  // namespace trestle
