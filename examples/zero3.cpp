// ZeRO-3, also known as FSDP: four ranks train a model that does not fit on any of their devices.
// Each rank holds a quarter of the weights, gradients and AdamW's moments in fp32. The layers
// compute in bf16 and are all-gathered one after another. The ranks are threads with a virtual
// device of 12 MiB each; under a launcher they are processes.
//
//   ./zero3
//   trestle launch -n 4 -- ./zero3
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

using namespace trestle::literals;

constexpr int width = 384, blocks = 8, batch = 32;

// One factory per layer: a rank creates one layer at a time, so that no device ever holds the whole
// model.
trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{1});
  for (int i = 0; i < blocks; ++i) {
    net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
    net.add("act" + std::to_string(i), torch::nn::GELU());
  }
  net.add("head", [] { return torch::nn::Linear(width, 3); });
  return net;
}

// Returns the final loss on this rank's samples.
double train(trestle::World& world, const trestle::Device& device) {
  if (!device.torch.is_cpu()) trestle::reset_peak_memory(device.torch);
  const trestle::DeviceMesh mesh(world, {{"shard", world.size()}});
  const trestle::ShardPrecision bf16 = {
      .parameters = at::kBFloat16, .reduce = at::kFloat, .output = at::kFloat};
  trestle::Sharded net(make_net(), mesh,
                       trestle::fsdp({.precision = bf16, .device = device.torch}));
  const auto optimizer =
      trestle::optim::make_optimizer(net.parameters(), {.name = "adamw", .learning_rate = 1e-3});
  // Different samples on each rank; the model memorizes them.
  const auto samples = trestle::seeded(static_cast<std::uint64_t>(world.rank()), [&] {
    return torch::randn({batch / world.size(), width});
  });
  const auto x = samples.to(device.torch);
  const auto y = x.narrow(1, 0, 3).argmax(1);
  double loss = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer->zero_grad();
    const auto value = torch::nn::functional::cross_entropy(net.forward(x), y);
    net.backward(value);
    net.clip_grad_norm(1.0);
    optimizer->step();
    loss = value.item<double>();
    if (world.rank() == 0 && step % 10 == 0)
      std::cout << "step " << step << "  loss " << loss << "\n";
  }
  if (world.rank() == 0) {
    std::cout << net.description();
    if (!device.torch.is_cpu())
      std::cout << "peak memory of this device: "
                << trestle::format_bytes(trestle::memory_usage(device.torch).peak) << "\n";
  }
  return loss;
}

}  // namespace

int main() {
  if (trestle::launch::read_rank_environment().world_size > 1) {
    auto world = trestle::init();
    train(world, trestle::cpu_device());
    return 0;
  }
  const auto devices = trestle::virtual_devices(4, 12_MiB);
  const auto train_on = [&](int ranks) {
    return trestle::spawn(ranks, [&](trestle::World& world) {
      return train(world, devices[static_cast<std::size_t>(world.rank())]);
    })[0];
  };
  std::cout << "One rank, which needs at least 16 bytes per parameter:\n";
  bool refused = false;
  try {
    train_on(1);
  } catch (const c10::OutOfMemoryError& error) {
    std::cout << error.what_without_backtrace() << "\n\n";
    refused = true;
  }
  std::cout << "Four ranks:\n";
  const double loss = train_on(4);
  return refused && loss < 0.3 ? 0 : 1;  // 1: it fits on one rank, or did not learn
}
