// Data parallelism (DDP): four ranks train one model, each on its own share of every batch. The
// weights equal those of one process that trains on the whole batch. The program starts four ranks
// as threads; under a launcher each rank is a process:
//
//   ./ddp
//   trestle launch -n 4 -- ./ddp          torchrun --no-python --nproc-per-node 4 ./ddp
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", torch::nn::Linear(20, 64));
    out = register_module("out", torch::nn::Linear(64, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::gelu(in(x))); }
  torch::nn::Linear in{nullptr}, out{nullptr};
};

constexpr int batch = 24;

double train(trestle::World& world) {
  const trestle::DeviceMesh mesh(world, {{"replicate", world.size()}});
  // Ranks may be threads of one process, where torch::manual_seed() would not give them the same
  // weights.
  const auto module = trestle::seeded(7, [] { return std::make_shared<NetImpl>(); });
  trestle::ShardedModule<NetImpl> net(module, mesh, trestle::ddp());
  const auto optimizer =
      trestle::optim::make_optimizer(net.parameters(), {.name = "adamw", .learning_rate = 0.01});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    const auto x = torch::randn({batch, 20}, generator);  // the same on all ranks
    const auto y = x.narrow(1, 0, 3).argmax(1);
    const auto mine = torch::tensor_split(x, world.size())[static_cast<std::size_t>(world.rank())];
    const auto target =
        torch::tensor_split(y, world.size())[static_cast<std::size_t>(world.rank())];
    optimizer->zero_grad();
    const auto value = torch::nn::functional::cross_entropy(net.forward(mine), target);
    // Shares may differ in size: each is weighted by its number of samples.
    net.backward(value, static_cast<double>(mine.size(0)));
    optimizer->step();
    loss = value.item<double>();
  }
  if (world.rank() == 0)
    std::cout << net.description() << "loss on rank 0's share: " << loss << "\n";
  return loss;
}

}  // namespace

int main() {
  if (trestle::launch::read_rank_environment().world_size > 1) {
    auto world = trestle::init();
    return train(world) < 0.5 ? 0 : 1;
  }
  const auto losses = trestle::spawn(4, [](trestle::World& world) { return train(world); });
  return losses[0] < 0.5 ? 0 : 1;
}
