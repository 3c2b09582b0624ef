// DataParallel: one process trains replicas of a model on two devices, each on half of every batch.
// The output is one tensor, the gradients are those of the whole batch, and the optimizer is
// torch's. A plain net on one device trains beside it for comparison.
#include <trestle/data_parallel/data_parallel.h>
#include <trestle/trestle.h>

#include <algorithm>
#include <iostream>

namespace {

// [net]
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {  // creates the children, as Cloneable requires
    hidden = register_module("hidden", torch::nn::Linear(10, 50));
    out = register_module("out", torch::nn::Linear(50, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden = nullptr, out = nullptr;
};
TORCH_MODULE(Net);
// [net]

// Two classes: is the sum of the numbers positive?
std::pair<at::Tensor, at::Tensor> batch(std::int64_t samples) {
  const at::Tensor x = torch::randn({samples, 10});
  return {x, x.sum(1).gt(0).to(torch::kLong)};
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i].cpu() - b[i].cpu()).abs().max().item<double>());
  return largest;
}

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) result.push_back(parameter.grad());
  return result;
}

}  // namespace

int main() {
  const auto devices = trestle::parse_devices("virtual:2");  // "cuda:all" with GPUs
  torch::manual_seed(1);
  Net plain, net;
  for (std::size_t i = 0; i < plain->parameters().size(); ++i)
    net->parameters()[i].set_data(plain->parameters()[i].detach().clone());

  // [wrap]
  trestle::DataParallel parallel(net, devices);
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  // [wrap]
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.5);

  double first_loss = 0, last_loss = 0, difference = 0;
  for (int step = 0; step < 60; ++step) {
    const auto [x, y] = batch(33);  // 17 samples for one device, 16 for the other
    // [step]
    optimizer.zero_grad();
    at::Tensor output = parallel(x);  // [33, 2], on the first device
    at::Tensor loss = torch::cross_entropy_loss(output, y.to(output.device()));
    loss.backward();
    // [step]
    plain_optimizer.zero_grad();
    torch::cross_entropy_loss(plain(x), y).backward();
    difference = std::max(difference, largest_difference(gradients(plain->parameters()),
                                                         gradients(net->parameters())));
    optimizer.step();
    plain_optimizer.step();
    last_loss = loss.item<double>();
    if (step == 0) {
      first_loss = last_loss;
      std::cout << "output " << output.sizes() << " on " << output.device() << "\n";
    }
  }
  std::cout << "loss from " << first_loss << " to " << last_loss
            << "\nlargest difference from the plain net's gradients: " << difference << "\n";
  return difference < 1e-5 && last_loss < 0.5 * first_loss ? 0 : 1;
}
