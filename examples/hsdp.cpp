// Hybrid sharding on a mesh of two rows and four columns: the ranks of a row divide the model, the rows repeat it. Eight
// ranks that are threads, each with a virtual device of its own, whose meters say what it holds; or eight processes:
//
//   ./hsdp
//   trestle launch -n 8 -- ./hsdp
//
// PyTorch's tutorials sometimes wrap such a model in DistributedDataParallel once more. That would sum over the rows twice:
// a mesh with a dimension that replicates has it already.
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

constexpr int width = 256, blocks = 6;

// A factory for each layer: a rank makes one after the other and keeps its part, so that no device ever holds the model.
trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{1});
  for (int i = 0; i < blocks; ++i) {
    net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
    net.add("act" + std::to_string(i), torch::nn::GELU());
  }
  net.add("head", [] { return torch::nn::Linear(width, 4); });
  return net;
}

void train(trestle::World& world, const trestle::Device& device) {
  const trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", world.size() / 2}});
  if (world.rank() == 0) std::cout << mesh.layout().picture();
  trestle::Sharded net(make_net(), mesh, trestle::hsdp({.device = device.torch}));
  const auto optimizer = trestle::optim::make_optimizer(net.parameters(), {.name = "adamw"});
  torch::manual_seed(world.rank());  // other samples on each rank
  for (int step = 0; step < 10; ++step) {
    const auto x = torch::randn({8, width}).to(device.torch);
    const auto y = x.narrow(1, 0, 4).argmax(1);
    optimizer->zero_grad();
    net.backward(torch::nn::functional::cross_entropy(net.forward(x), y));
    const double norm = net.clip_grad_norm(1.0);
    optimizer->step();
    if (world.rank() == 0 && step % 3 == 0)
      std::cout << "step " << step << "  gradient norm " << norm << "\n";
  }
  if (world.rank() != 0) return;
  const auto report = net.report();
  std::cout << net.description() << trestle::format_bytes(report.gathered / report.steps)
            << " gathered and " << trestle::format_bytes(report.reduced / report.steps)
            << " reduced a step\n";
  if (!device.torch.is_cpu())
    std::cout << "this device held at most "
              << trestle::format_bytes(trestle::memory_usage(device.torch).peak)
              << "; weights, gradients and AdamW's averages of the whole model are "
              << trestle::format_bytes(16 * (blocks * (width * width + width) + 4 * width + 4))
              << "\n";
}

}  // namespace

int main() {
  if (trestle::launch::read_rank_environment().world_size > 1) {
    auto world = trestle::init();
    train(world, trestle::cpu_device());
    return 0;
  }
  const auto devices = trestle::virtual_devices(8);
  trestle::spawn(8, [&](trestle::World& world) {
    train(world, devices[static_cast<std::size_t>(world.rank())]);
  });
  return 0;
}
