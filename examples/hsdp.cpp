// Hybrid sharding (HSDP) on a mesh of two rows and four columns. The ranks of a row shard the
// model; the rows are replicas. Eight ranks are threads, each with its own virtual device, which
// measures its memory; or eight processes:
//
//   ./hsdp
//   trestle launch -n 8 -- ./hsdp
//
// Some PyTorch tutorials also wrap such a model in DistributedDataParallel. Here that would reduce
// the gradients over the rows twice: the mesh's "replicate" dimension already does it.
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

constexpr int width = 256, blocks = 6;

// One factory per layer. A rank creates one layer at a time and keeps its shard, so that no device
// ever holds the whole model.
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
  torch::manual_seed(world.rank());  // different samples on each rank
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
            << " reduced per step\n";
  if (!device.torch.is_cpu())
    std::cout << "peak memory of this device: "
              << trestle::format_bytes(trestle::memory_usage(device.torch).peak)
              << "; weights, gradients and AdamW's moments of the whole model: "
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
