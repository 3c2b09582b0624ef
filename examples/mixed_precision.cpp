// Trains in fp16 with a gradient scaler. Each step accumulates the gradients of two batches.
#include <trestle/trestle.h>

#include <cmath>
#include <iostream>

using namespace trestle::literals;

int main() {
  auto devices = trestle::virtual_devices(2, 64_MiB);
  trestle::nn::Layers net(trestle::nn::Seed{1});
  net.add("in", [] { return torch::nn::Linear(8, 32); });
  net.add("norm", [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})); });
  net.add("relu", torch::nn::ReLU());
  net.add("out", [] { return torch::nn::Linear(32, 4); });

  trestle::Pipeline pipeline(net, {.devices = devices,
                                   .balance = {2, 2},
                                   .micro_batches = 2,
                                   .numerics = {.precision = trestle::Precision::Float16}});
  torch::optim::Adam optimizer(pipeline.parameters(), 1e-2);
  trestle::precision::GradientScaler scaler;
  const auto loss = trestle::nn::cross_entropy();
  torch::manual_seed(2);
  const auto x = torch::randn({32, 8}).chunk(2);
  const auto y = torch::randint(4, {32}).chunk(2);

  double first = 0, mean = 0;
  for (int step = 0; step < 30; ++step) {
    // [step]
    const double scale = scaler.scale() / 2;  // two batches, each with half of the weight
    const auto a = pipeline.step(x[0], y[0], loss, {.gradient_scale = scale});
    const auto b = pipeline.step(x[1], y[1], loss,
                                 {.gradient_scale = scale, .first_micro_batch = a.micro_batches});
    if (scaler.unscale(pipeline.parameters())) {  // all finite
      pipeline.clip_grad_norm(1.0);
      optimizer.step();
    }
    scaler.update();
    pipeline.zero_grad();
    // [step]
    mean = (a.loss + b.loss) / 2;
    if (step == 0) first = mean;
  }
  std::cout << "loss " << first << " -> " << mean << ", scale " << scaler.scale() << "\n";
  return std::isfinite(mean) && mean < first / 2 ? 0 : 1;
}
