// Hybrid sharding (HSDP) on a mesh of two rows and four columns. The ranks of a row shard the
// model; the rows are replicas. Eight ranks are threads, each with its own virtual device, which
// measures its memory; or eight processes:
//
//   ./hsdp
//   trestle launch -n 8 -- ./hsdp
//
// --precision bf16 computes in 16 bits. examples/survey/hsdp.py is the same program in Python, with
// the same losses.
//
// Some PyTorch tutorials also wrap such a model in DistributedDataParallel. Here that would reduce
// the gradients over the rows twice: the mesh's "replicate" dimension already does it.
#include <torch/torch.h>
#include <trestle/trestle.h>

#include "examples/survey/survey.h"

#include <iostream>

namespace {

constexpr int width = 256, blocks = 6;

// One factory per layer. A rank creates one layer at a time and keeps its shard, so that no device
// ever holds the whole model.
trestle::nn::Layers make_net() {
  const auto linear = [](int number, int outputs) {
    return [number, outputs] {
      torch::nn::Linear made(width, outputs);
      survey::set_weights(*made, static_cast<std::uint64_t>(2 * number));  // Python's
      return made;
    };
  };
  trestle::nn::Layers net(trestle::nn::Seed{1});
  for (int i = 0; i < blocks; ++i) {
    net.add("linear" + std::to_string(i), linear(i, width));
    net.add("act" + std::to_string(i), torch::nn::GELU());
  }
  net.add("head", linear(blocks, 4));
  return net;
}

trestle::ShardPrecision precision_of(const survey::Arguments& arguments) {
  if (arguments.precision == trestle::Precision::Float32) return {};
  const bool is_bf16 = arguments.precision == trestle::Precision::BFloat16;
  return {.parameters = is_bf16 ? at::kBFloat16 : at::kHalf,
          .reduce = at::kFloat,
          .output = at::kFloat};
}

void train(trestle::World& world, const trestle::Device& device,
           const survey::Arguments& arguments) {
  const trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", world.size() / 2}});
  if (world.rank() == 0) std::cout << mesh.layout().picture();
  trestle::Sharded net(
      make_net(), mesh,
      trestle::hsdp({.precision = precision_of(arguments), .device = device.torch}));
  const auto optimizer = trestle::optim::make_optimizer(net.parameters(), {.name = "adamw"});
  for (int step = 0; step < 10; ++step) {
    // Different samples on each rank.
    const auto key = static_cast<std::uint64_t>(1000 + 100 * step + world.rank());
    const auto x = survey::samples({8, width}, key).to(device.torch);
    const auto y = x.narrow(1, 0, 4).argmax(1);
    optimizer->zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(net.forward(x), y);
    net.backward(loss);
    net.clip_grad_norm(1.0);
    optimizer->step();
    at::Tensor mean = loss.detach().to(at::kCPU).clone();
    world.group().all_reduce(mean).wait();
    if (world.rank() == 0) survey::print_loss(step, mean.item<double>() / world.size());
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

int main(int argc, char** argv) {
  return survey::run(argc, argv, [](const survey::Arguments& arguments) {
    if (trestle::launch::read_rank_environment().world_size > 1) {
      auto world = trestle::init();
      return train(world, trestle::cpu_device(), arguments);
    }
    const auto devices = trestle::virtual_devices(8);
    trestle::spawn(8, [&](trestle::World& world) {
      train(world, devices[static_cast<std::size_t>(world.rank())], arguments);
    });
  });
}
