// The toy model of PyTorch's tutorial on model parallelism: a layer 10-10 on one device, a layer
// 10-5 on another, mean squared error, SGD. With whole batches one device always waits for the
// other. With four micro-batches both compute. The weights after ten steps are the same.
#include <trestle/trestle.h>

#include <iostream>

namespace {

trestle::nn::Layers toy_model() {
  torch::manual_seed(42);
  trestle::nn::Layers net;
  net.add("net1", torch::nn::Linear(10, 10));
  net.add("relu", torch::nn::ReLU());
  net.add("net2", torch::nn::Linear(10, 5));
  return net;
}

struct Result {
  double loss;
  at::Tensor weight;
  double idle;
};

Result train(int micro_batches, const std::vector<trestle::Device>& devices) {
  trestle::nn::Layers net = toy_model();
  trestle::Pipeline pipeline(
      net, {.devices = devices, .balance = {2, 1}, .micro_batches = micro_batches});
  torch::optim::SGD optimizer(pipeline.parameters(), 1e-3);
  torch::manual_seed(1);
  const at::Tensor inputs = torch::randn({20, 10}), labels = torch::randn({20, 5});
  Result result{};
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    result.loss = pipeline.step(inputs, labels, trestle::nn::mean_squared_error()).loss;
    optimizer.step();
  }
  result.weight = net.parameters()[0].to(at::kCPU);
  const auto simulated =
      trestle::simulate::simulate(pipeline.schedule(), trestle::simulate::unit_costs(2));
  result.idle = trestle::schedule::idle_share_of_makespan(simulated);
  return result;
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(2);
  const Result one = train(1, devices), four = train(4, devices);
  const double difference = (one.weight - four.weight).abs().max().item<double>();
  std::cout << "whole batches:      loss " << one.loss << ", idle " << 100 * one.idle << " %\n"
            << "four micro-batches: loss " << four.loss << ", idle " << 100 * four.idle << " %\n"
            << "largest difference of the weights: " << difference << "\n";
  return difference < 1e-6 && four.idle < one.idle ? 0 : 1;
}
