// A model that does not fit on one device trains on two. Each virtual device has 24 MiB.
#include <trestle/trestle.h>

#include <iostream>

namespace {

using namespace trestle::literals;

trestle::nn::Layers make_net() {
  return trestle::models::unet({.in_channels = 3, .classes = 2, .width = 8, .seed = 1});
}

// Trains for three steps. Prints the losses and the peak memory of each device.
void train(trestle::PipelineOptions options, const at::Tensor& x, const at::Tensor& y) {
  trestle::Pipeline pipeline(make_net(), options);
  torch::optim::Adam optimizer(pipeline.parameters(), 1e-3);
  for (const auto& device : options.devices) trestle::reset_peak_memory(device.torch);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const double loss = pipeline.step(x, y, trestle::nn::cross_entropy()).loss;
    optimizer.step();
    std::cout << "step " << step << ", loss " << loss << "\n";
  }
  for (const auto& device : options.devices) {
    const auto usage = trestle::memory_usage(device.torch);
    std::cout << trestle::device_name(device.torch) << " peak memory "
              << trestle::format_bytes(usage.peak) << " of " << trestle::format_bytes(usage.budget)
              << "\n";
  }
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(2, 24_MiB);
  const at::Tensor x = torch::randn({8, 3, 64, 64});
  const at::Tensor y = torch::randint(2, {8, 64, 64});

  std::cout << "All 22 layers on one device:\n";
  bool refused = false;
  try {
    train({.devices = {devices[0]}, .balance = {22}, .micro_batches = 2}, x, y);
  } catch (const c10::OutOfMemoryError& error) {
    std::cout << error.what_without_backtrace() << "\n\n";
    refused = true;
  }

  std::cout << "The same on two:\n";
  train({.devices = devices, .balance = {8, 14}, .micro_batches = 2}, x, y);
  return refused ? 0 : 1;  // 1: the model fits on one device after all
}
