#include <trestle/trestle.h>

#include <cstdio>

// A small net in two stages on two virtual devices: the loss must fall.
int main() {
  using namespace trestle::literals;
  torch::manual_seed(0);
  trestle::nn::Layers net;
  net.add("in", torch::nn::Linear(8, 16));
  net.add("relu", torch::nn::ReLU());
  net.add("out", torch::nn::Linear(16, 1));
  trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2, 64_MiB),
                                   .balance = {2, 1},
                                   .micro_batches = 4,
                                   .schedule = "1f1b"});
  torch::optim::SGD optimizer(pipeline.parameters(), 0.05);
  const torch::Tensor input = torch::randn({32, 8});
  const torch::Tensor target = input.sum(1, /*keepdim=*/true);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 20; ++step) {
    pipeline.zero_grad();
    last = pipeline.step(input, target, trestle::nn::mean_squared_error()).loss;
    optimizer.step();
    if (step == 0) first = last;
  }
  std::printf("loss %.4f, then %.4f\n", first, last);
  return last < first ? 0 : 1;
}
