// A pipeline accepts a plain torch::nn::Sequential. Without `balance`, the pipeline measures the
// layers on a sample and chooses the cut whose slowest stage is fastest.
#include <trestle/trestle.h>

#include <iostream>

int main() {
  const auto devices = trestle::virtual_devices(2);
  torch::manual_seed(0);
  // [use]
  torch::nn::Sequential model(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).stride(2)), torch::nn::ReLU(),
      torch::nn::Flatten(), torch::nn::Linear(16 * 13 * 13, 10));
  const at::Tensor sample = torch::randn({32, 1, 28, 28});
  const at::Tensor expected = model->forward(sample);

  trestle::Pipeline pipeline(
      model, {.devices = devices, .micro_batches = 4, .plan = {.sample = {sample}}});
  // [use]
  std::cout << "layers of each stage:";
  for (const int layers : pipeline.balance()) std::cout << " " << layers;

  // The modules are shared, not copied: the model's parameters are now on the two devices, under
  // their original names.
  std::cout << "\n";
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    std::cout << name << " is on " << trestle::device_name(parameter.device()) << "\n";
  }
  const at::Tensor output = pipeline.evaluate(sample).to(at::kCPU);
  const double difference = (output - expected).abs().max().item<double>();
  std::cout << "largest difference from the unsplit model's output: " << difference << "\n";
  return difference < 1e-5 && pipeline.stage_count() == 2 ? 0 : 1;
}
