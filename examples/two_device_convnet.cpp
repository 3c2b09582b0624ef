// Model parallelism with a small convolutional net: convolutions and pooling on the first device,
// linear layers on the second. The net learns to tell horizontal from vertical stripes. Every loss
// equals that of the same net on one device.
#include <trestle/trestle.h>

#include <cmath>
#include <iostream>

namespace {

// [net]
trestle::nn::Layers small_net() {
  trestle::nn::Layers net(trestle::nn::Seed{7});
  net.add("conv1", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)); });
  net.add("relu1", [](const at::Tensor& x) { return at::relu(x); });
  net.add("pool1", [](const at::Tensor& x) { return at::max_pool2d(x, 2); });
  net.add("conv2", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)); });
  net.add("relu2", [](const at::Tensor& x) { return at::relu(x); });
  net.add("pool2", [](const at::Tensor& x) { return at::max_pool2d(x, 2).flatten(1); });
  net.add("fc1", [] { return torch::nn::Linear(16 * 4 * 4, 32); });
  net.add("relu3", [](const at::Tensor& x) { return at::relu(x); });
  net.add("fc2", [] { return torch::nn::Linear(32, 2); });
  return net;
}
// [net]

struct Batch {
  at::Tensor images, classes;
};

// 16 x 16 pixels of noise and stripes. Class 0 is horizontal, class 1 vertical.
Batch stripes(std::int64_t count) {
  const at::Tensor classes = torch::randint(2, {count});
  const at::Tensor wave = torch::sin(torch::arange(16) * 1.5);
  const at::Tensor horizontal = wave.view({1, 1, 16, 1}).expand({count, 1, 16, 16});
  const at::Tensor is_vertical = classes.view({count, 1, 1, 1}).to(torch::kBool);
  return {at::where(is_vertical, horizontal.transpose(2, 3), horizontal) +
              torch::randn({count, 1, 16, 16}),
          classes};
}

std::vector<double> train(trestle::PipelineOptions options) {
  trestle::nn::Layers net = small_net();
  trestle::Pipeline pipeline(net, std::move(options));
  torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
  torch::manual_seed(1);
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) {
    const Batch batch = stripes(32);
    optimizer.zero_grad();
    losses.push_back(pipeline.step(batch.images, batch.classes, trestle::nn::cross_entropy()).loss);
    optimizer.step();
  }
  return losses;
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(2);
  const auto one = train({.devices = {devices[0]}});
  // [cut]
  const auto two = train({.devices = devices, .balance = {6, 3}});  // conv1 to pool2; fc1 to fc2
  // [cut]
  double difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    difference = std::max(difference, std::abs(one[i] - two[i]));
  std::cout << "on two devices the loss falls from " << two.front() << " to " << two.back()
            << "\nlargest difference from one device: " << difference << "\n";
  return difference < 1e-4 && two.back() < 0.3 * two.front() ? 0 : 1;
}
