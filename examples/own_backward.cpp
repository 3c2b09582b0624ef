// Your own loss and backward: forward() returns the whole output, any loss may be computed from it,
// and loss.backward() runs the backwards of all stages. The gradients equal those of the unsplit
// model.
#include <trestle/trestle.h>

#include <iostream>

namespace {

// A loss over the outputs of the whole batch: moves their mean prediction towards a goal.
at::Tensor my_loss(const at::Tensor& output, const at::Tensor& goal) {
  return (output.softmax(1).mean(0) - goal).square().sum();
}

// The largest difference between two models' gradients, on the CPU.
double largest_difference(const trestle::nn::Layers& one, const trestle::nn::Layers& other) {
  const auto a = one.parameters(), b = other.parameters();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const at::Tensor difference = a[i].grad().to(at::kCPU) - b[i].grad().to(at::kCPU);
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

}  // namespace

int main() {
  // Install virtual devices first: they must exist before the process's first backward.
  const auto devices = trestle::virtual_devices(2);
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({12, 10});
  const at::Tensor goal = torch::tensor({0.5, 0.2, 0.1, 0.1, 0.1}).to(torch::kFloat);

  // Two nets with the same weights.
  trestle::nn::Layers plain = trestle::models::mlp({.seed = 7});
  trestle::nn::Layers net = trestle::models::mlp({.seed = 7});
  trestle::Pipeline pipeline(net, {.devices = devices, .balance = {3, 3}, .micro_batches = 4});

  // [backward]
  at::Tensor output = pipeline.forward(x);  // on the last device
  at::Tensor loss = my_loss(output, goal.to(output.device()));
  loss.backward();  // runs the stages' backwards, last micro-batch first
  // [backward]

  my_loss(plain.forward(x), goal).backward();
  const double difference = largest_difference(plain, net);
  std::cout << "loss " << loss.item<double>() << "\n"
            << "largest difference from the unsplit model's gradients: " << difference << "\n";

  // A backward frees the pipeline's graph. A second backward is an error; it does not add zeros.
  bool refused = false;
  try {
    output.sum().backward();
  } catch (const trestle::StateError& error) {
    refused = true;
    std::cout << error.what() << "\n";
  }
  return difference < 1e-6 && refused ? 0 : 1;
}
