// ZeRO-2 from DeepSpeed's JSON (deepspeed_zero2.json, beside this source), with DeepSpeed's calls.
// The ranks shard the gradients and the optimizer's state; the model computes in fp16.
//
//     deepspeed_zero2 [FILE]                            two ranks, threads of this process
//     trestle launch -n 4 -- deepspeed_zero2 [FILE]     four processes; also torchrun, srun, mpirun
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <trestle/comm/threads/spawn.h>
#include <trestle/deepspeed/deepspeed.h>
#include <trestle/device/seeded.h>

#include <exception>
#include <filesystem>
#include <iostream>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(10, 50));
    out = register_module("out", torch::nn::Linear(50, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

// Inputs: a point of the plane and eight random numbers. Target: whether the point is in a circle.
std::pair<at::Tensor, at::Tensor> micro_batch(std::int64_t size, int step, int rank) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 * step + rank));
  const at::Tensor x = at::randn({size, 10}, generator, at::TensorOptions());
  return {x, x.narrow(1, 0, 2).square().sum(1).lt(1.4).to(at::kLong)};
}

// The work of each rank. Returns whether the model learned.
bool work(const trestle::World& world, const std::filesystem::path& file) {
  const auto net = trestle::seeded(1, [] { return std::make_shared<NetImpl>(); });

  // [engine]
  // The file names no optimizer. The program creates one, over this rank's shards.
  auto engine = trestle::deepspeed::initialize(
      net, file, world, {.optimizer = [](const trestle::NamedTensors& named) {
        std::vector<at::Tensor> parameters;
        for (const auto& [name, parameter] : named) parameters.push_back(parameter);
        return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.02));
      }});
  if (engine.global_rank() == 0) std::cout << engine.description();

  double first = 0, last = 0;
  for (int step = 0; step < 150; ++step) {
    const auto [x, y] =
        micro_batch(engine.train_micro_batch_size_per_gpu(), step, engine.global_rank());
    const at::Tensor loss = torch::cross_entropy_loss(engine(x).to(at::kFloat), y);
    engine.backward(loss);
    engine.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  // [engine]

  if (engine.global_rank() == 0)
    std::cout << "loss " << first << ", after " << engine.global_steps() << " steps " << last
              << "; the loss is scaled by " << engine.loss_scale() << ", " << engine.skipped_steps()
              << " steps were skipped\n";
  return last < 0.7 * first;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::filesystem::path beside = std::filesystem::path(__FILE__).replace_extension(".json");
    const std::filesystem::path file = argc > 1 ? std::filesystem::path(argv[1]) : beside;
    const trestle::World world = trestle::init();
    if (world.size() > 1) return work(world, file) ? 0 : 1;
    for (const bool learned :
         trestle::spawn(2, [&](trestle::World& rank) { return work(rank, file); }))
      if (!learned) return 1;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
