// Activation checkpointing: the activations of some layers are not stored, the backward recomputes
// them.
#include <trestle/trestle.h>

#include <iostream>

int main() {
  torch::manual_seed(1);
  // [closure]
  torch::nn::Linear first(10, 50), second(50, 2);
  torch::nn::Dropout dropout(0.2);
  int runs = 0;
  // Any function works. Its captures must live until backward().
  const auto hidden = [&](at::Tensor input) {
    ++runs;
    return dropout(torch::relu(first(input)));
  };

  const at::Tensor x = torch::randn({8, 10});
  const at::Tensor loss = second(trestle::nn::checkpoint(hidden, x)).square().mean();
  loss.backward();  // recomputes `hidden` with the same dropout mask
  // [closure]

  const at::Tensor ours = first->weight.grad().clone();
  first->zero_grad();
  torch::manual_seed(1);
  torch::nn::Linear(10, 50), torch::nn::Linear(50, 2);  // draws the same mask as above
  (void)torch::randn({8, 10});
  second(hidden(x)).square().mean().backward();
  const double apart = (ours - first->weight.grad()).abs().max().item<double>();
  std::cout << "checkpoint() called the function " << runs - 1 << " times; gradients differ by "
            << apart << "\n";

  // [module]
  torch::nn::Sequential block(torch::nn::Linear(10, 10), torch::nn::BatchNorm1d(10),
                              torch::nn::ReLU());
  at::Tensor y = trestle::nn::checkpoint(block, x);  // the statistics count the batch once
  y = trestle::nn::checkpoint({.early_stop = false}, block, y);
  y.sum().backward();
  // [module]
  const auto batches = block[1]->as<torch::nn::BatchNorm1d>()->num_batches_tracked.item<int>();
  std::cout << "batches counted: " << batches << "\n";

  // [layers]
  trestle::nn::Layers net;
  for (int i = 0; i < 9; ++i) net.add("linear" + std::to_string(i), torch::nn::Linear(10, 10));
  const auto in_three = trestle::nn::Checkpointed::in_segments(3, net);
  const auto every_other = trestle::nn::Checkpointed::every(2, net);
  const auto chosen = trestle::nn::Checkpointed::units({"linear3", "linear4"}, net);
  const at::Tensor plain = net.forward(x);
  for (const auto& model : {in_three, every_other, chosen}) {
    std::cout << "recomputes " << model.recomputed().size() << " units\n";
    if (!at::equal(model.forward(x), plain)) return 1;
  }
  // [layers]
  return runs == 3 && apart == 0 && batches == 2 ? 0 : 1;
}
