// FSDP of an ordinary torch module: its blocks are units, because they are Hooked, and each is put together only where it
// runs. Four ranks that are threads, each with a virtual device of its own, whose meters say what it holds; or processes:
//
//   ./fsdp_units
//   trestle launch -n 4 -- ./fsdp_units
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

constexpr int width = 256, blocks = 8;

// [module]
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < blocks; ++i) body->push_back(trestle::HookedHolder<BlockImpl>());
    register_module("body", body);
    head = register_module("head", torch::nn::Linear(width, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(body->forward(x)); }
  torch::nn::Sequential body;
  torch::nn::Linear head{nullptr};
};
// [module]

double train(trestle::World& world, const trestle::Device& device) {
  const trestle::DeviceMesh mesh(world, {{"shard", world.size()}});
  trestle::ShardedModule<NetImpl> net(std::make_shared<NetImpl>(), mesh,
                                      trestle::fsdp({.device = device.torch}));
  const auto optimizer = trestle::optim::make_optimizer(net.parameters(), {.name = "adamw"});
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(world.rank()));
  if (!device.torch.is_cpu()) trestle::reset_peak_memory(device.torch);
  double loss = 0;
  for (int step = 0; step < 10; ++step) {
    const auto x = torch::randn({8, width}, generator);  // other samples on each rank
    const auto y = x.narrow(1, 0, 4).argmax(1).to(device.torch);
    optimizer->zero_grad();
    const auto value =
        torch::nn::functional::cross_entropy(net.forward(x.to(device.torch)), y);
    net.backward(value);
    optimizer->step();
    loss = value.item<double>();
  }
  if (world.rank() != 0) return loss;
  std::int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  std::cout << net.description();
  if (device.torch.is_cpu()) return loss;
  const trestle::Bytes peak = trestle::memory_usage(device.torch).peak;
  std::cout << "this device held at most " << trestle::format_bytes(peak)
            << "; weights, gradients and AdamW's averages of the whole model are "
            << trestle::format_bytes(16 * count) << "\n";
  return peak < 8 * count ? loss : -1;
}

}  // namespace

int main() {
  if (trestle::launch::read_rank_environment().world_size > 1) {
    auto world = trestle::init();
    train(world, trestle::cpu_device());
    return 0;
  }
  const auto devices = trestle::virtual_devices(4);
  const auto losses = trestle::spawn(4, [&](trestle::World& world) {
    return train(world, devices[static_cast<std::size_t>(world.rank())]);
  });
  return losses[0] >= 0 ? 0 : 1;
}
