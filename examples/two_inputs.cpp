// A model of two inputs: pictures and a row of numbers for each. The numbers skip the convolutions,
// and join them on the second device. The gradients equal those of the unsplit model.
#include <trestle/trestle.h>

#include <algorithm>
#include <iostream>
#include <tuple>

namespace {

namespace nn = trestle::nn;

// [net]
nn::Layers make_net() {
  nn::Layers net(nn::Seed{7}, 2);  // two inputs: the first layer's arguments
  net.add("inputs", [](const at::Tensor& x, const at::Tensor& z) { return std::tuple(x, z); })
      .keep_output("numbers", 1);  // for a later layer; the pictures feed the next one
  net.add("conv", [] { return torch::nn::Conv2d(3, 8, 3); });
  net.add("relu", [](const at::Tensor& x) { return at::relu(x); });
  net.add("pool", [](const at::Tensor& x) { return x.mean({2, 3}); });
  net.add("join",
          [](const at::Tensor& x, const at::Tensor& z) {
            return at::cat({x, z}, 1);
          })
      .take("numbers");
  net.add("out", [] { return torch::nn::Linear(8 + 4, 2); });
  return net;
}
// [net]

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(2);
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({24, 3, 12, 12}), z = torch::randn({24, 4});
  const at::Tensor y = z.select(1, 0).gt(0).to(torch::kLong);  // the first number decides

  // [step]
  nn::Layers net = make_net();
  trestle::Pipeline pipeline(
      net, {.devices = devices, .balance = {4, 2}, .micro_batches = 4, .schedule = "1f1b"});
  torch::optim::Adam adam(pipeline.parameters(), 0.05);
  for (int step = 0; step < 40; ++step) {
    adam.zero_grad();
    const auto result = pipeline.step({x, z}, y, nn::cross_entropy());  // both are split
    adam.step();
    if (step % 13 == 0) std::cout << "step " << step << "  loss " << result.loss << "\n";
  }
  const nn::Values output = pipeline.evaluate(nn::Values{x, z});
  // [step]
  const double right =
      output[0].to(at::kCPU).argmax(1).eq(y).to(torch::kDouble).mean().item<double>();
  std::cout << "right " << 100 * right << " %\n";

  // The gradients of one step, and those of the unsplit model.
  nn::Layers plain = make_net(), cut = make_net();
  trestle::Pipeline again(cut, {.devices = devices, .balance = {4, 2}, .micro_batches = 4});
  again.step({x, z}, y, nn::cross_entropy());
  at::cross_entropy_loss(plain.forward(nn::Values{x, z})[0], y).backward();
  double largest = 0;
  for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
    const at::Tensor difference =
        plain.parameters()[i].grad() - cut.parameters()[i].grad().to(at::kCPU);
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  std::cout << "largest difference from the unsplit model's gradients: " << largest << "\n";
  return right > 0.9 && largest < 1e-6 ? 0 : 1;
}
