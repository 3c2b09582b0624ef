// Tensor parallelism by a plan: two ranks split the layers of a program's own module and compute
// what the plain model computes.
#include <trestle/trestle.h>

#include <algorithm>
#include <iostream>

namespace {

// [module]
struct GatedMlpImpl : torch::nn::Module {
  GatedMlpImpl()
      : gate_up(register_module("gate_up", torch::nn::Linear(16, 2 * 44))),
        down(register_module("down", torch::nn::Linear(44, 16))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = gate_up(x).chunk(2, -1);
    return x + down(at::silu(parts[0]) * parts[1]);
  }
  torch::nn::Linear gate_up, down;
};

trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{7});
  net.add("embed", [] { return torch::nn::Embedding(50, 16); });
  for (int i = 0; i < 2; ++i)
    net.add("blocks." + std::to_string(i), [] { return std::make_shared<GatedMlpImpl>(); });
  net.add("head", [] { return torch::nn::Linear(16, 50); });
  return net;
}
// [module]

at::Tensor ids() { return torch::arange(24).remainder(50).view({4, 6}); }

}  // namespace

int main() {
  trestle::nn::Layers plain = make_net();
  const at::Tensor expected = plain.forward(ids());
  expected.square().mean().backward();
  const auto gradient_of_down = [](const trestle::nn::Layers& net) {
    for (const auto& [name, tensor] : net.named_parameters())
      if (name == "blocks.0.down.weight") return tensor.grad();
    return at::Tensor();
  };

  const auto errors = trestle::spawn(2, [&](trestle::World& world) {
    // [split]
    using trestle::tensor_parallel::Split;
    const trestle::tensor_parallel::TensorRanks ranks(world.group());
    trestle::nn::Layers net = make_net();
    const auto plan = trestle::tensor_parallel::split(
        net, ranks,
        {{"embed", Split::Vocabulary},
         {"blocks.*.gate_up", Split::Columns, /*parts=*/{44, 44}},  // a gate beside its input
         {"blocks.*.down", Split::Rows},
         {"head", Split::ColumnsGathered}});
    const at::Tensor scores = net.forward(ids());  // equal on both ranks
    scores.square().mean().backward();
    // [split]
    if (world.rank() == 0) std::cout << plan.description();
    // This rank has 22 of the 44 input columns.
    const at::Tensor own = gradient_of_down(plain).narrow(1, 22 * world.rank(), 22);
    return std::max((scores - expected).abs().max().item<double>(),
                    (gradient_of_down(net) - own).abs().max().item<double>());
  });

  std::cout << "largest difference of scores and gradients from the plain model: " << errors[0]
            << "\n";
  return errors[0] < 1e-5 && errors[1] < 1e-5 ? 0 : 1;
}
