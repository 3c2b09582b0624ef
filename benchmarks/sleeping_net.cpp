#include "benchmarks/sleeping_net.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <thread>

#include "trestle/base/text.h"

namespace benchmarks {

namespace {

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double seconds) {
    context->saved_data["seconds"] = 2 * seconds;
    sleep(seconds);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    sleep(context->saved_data["seconds"].toDouble());
    return {gradients[0], at::Tensor()};
  }
};

struct SleepingLinearImpl : torch::nn::Module {
  SleepingLinearImpl(std::int64_t features, const SleepingCosts& layer_costs)
      : linear(register_module("linear", torch::nn::Linear(features, features))),
        costs(layer_costs) {}

  at::Tensor forward(const at::Tensor& x) {
    return Sleep::apply(linear(x), costs.call + costs.sample * static_cast<double>(x.size(0)));
  }

  torch::nn::Linear linear;
  SleepingCosts costs;
};

}  // namespace

trestle::nn::Layers sleeping_net(int layers, std::int64_t features, const SleepingCosts& costs) {
  trestle::nn::Layers net(trestle::nn::Seed{42});
  for (int layer = 1; layer <= layers; ++layer)
    net.add(trestle::text("sleep", layer),
            [=] { return std::make_shared<SleepingLinearImpl>(features, costs); });
  return net;
}

}  // namespace benchmarks
