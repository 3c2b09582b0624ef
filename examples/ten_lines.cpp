// Trains a small net with a skip connection for 30 steps, split over two virtual devices.
// Prints the loss, the peak memory of each device, and the accuracy of the trained net.
#include <trestle/trestle.h>

#include <iostream>

using namespace trestle::literals;  // 64_MiB
using torch::nn::Conv2d;

namespace {

torch::nn::Sequential block(int in, int out) {
  return torch::nn::Sequential(Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)),
                               torch::nn::BatchNorm2d(out), torch::nn::ReLU());
}

at::Tensor join(at::Tensor x, at::Tensor skip) { return torch::cat({x, skip}, 1); }

}  // namespace

int main() {
  torch::manual_seed(0);
  const at::Tensor images = torch::randn({16, 3, 24, 24});
  const at::Tensor masks = (images.sum(1) > 0).to(torch::kLong);  // [16, 24, 24], two classes
  // [use]
  trestle::nn::Layers net;
  net.add("in", block(3, 16)).keep_output("fine");  // a tap: also stores the output
  net.add("middle", block(16, 16));
  net.add("join", join).take("fine");  // join(x, skip)
  net.add("out", torch::nn::Conv2d(32, 2, 1));

  trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2, 64_MiB),
                                   .balance = {4, 4},
                                   .micro_batches = 4,
                                   .schedule = "1f1b",
                                   .recompute = trestle::Recompute::ExceptLast});
  torch::optim::Adam optimizer(pipeline.parameters(), 1e-2);
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const double loss = pipeline.step(images, masks, trestle::nn::cross_entropy()).loss;
    optimizer.step();
    if (step % 10 == 9) std::cout << "loss " << loss << "\n";
  }
  // [use]
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const trestle::MemoryUsage memory = trestle::memory_usage(pipeline.device(stage).torch);
    std::cout << "stage " << stage << " on " << trestle::to_string(pipeline.device(stage))
              << ", peak memory " << trestle::format_bytes(memory.peak) << "\n";
  }
  // Evaluate the trained net: the share of pixels that it classifies correctly.
  const at::Tensor right = pipeline.evaluate(images).to(at::kCPU).argmax(1) == masks;
  const double share = right.to(torch::kFloat).mean().item<double>();
  std::cout << "correct: " << 100 * share << " % of the pixels\n";
  return share > 0.9 ? 0 : 1;
}
