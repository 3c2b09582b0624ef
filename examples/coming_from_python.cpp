// The training loops of Python's DistributedDataParallel, FSDP and DeepSpeed, line by line.
// docs/coming_from_python.md shows both side by side. Four ranks are threads of this process; under
// a launcher each rank is a process.
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <unistd.h>

#include <filesystem>
#include <iostream>

namespace {

// [block]
struct BlockImpl : torch::nn::Module {
  BlockImpl() { linear = register_module("linear", torch::nn::Linear(32, 32)); }
  // Activations inside checkpoint() are not stored; the backward recomputes them.
  at::Tensor forward(const at::Tensor& x) {
    return x +
           trestle::nn::checkpoint([this](at::Tensor in) { return torch::gelu(linear(in)); }, x);
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Block);

trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{1});
  for (int i = 0; i < 4; ++i) net.add("block" + std::to_string(i), [] { return Block(); });
  net.add("head", [] { return torch::nn::Linear(32, 2); });
  return net;
}
// [block]

at::Tensor loss_of(trestle::Sharded& model, const at::Tensor& x) {
  return torch::mse_loss(model.forward(x).to(at::kFloat), x.narrow(1, 0, 2));
}

// DistributedDataParallel, with no_sync and clipping.
double ddp(trestle::World& world, const at::Tensor& x) {
  // [ddp]
  trestle::DeviceMesh mesh(world, {{"replicate", world.size()}});
  trestle::Sharded model(make_net(), mesh, trestle::ddp());
  auto optimizer = trestle::optim::make_optimizer(model.parameters(), {.name = "adamw"});

  const auto halves = x.chunk(2);
  {
    const auto no_sync = model.no_sync();
    model.backward(loss_of(model, halves[0]) / 2);
  }
  model.backward(loss_of(model, halves[1]) / 2);
  const double norm = model.clip_grad_norm(1.0);
  optimizer->step();
  optimizer->zero_grad();
  // [ddp]
  return norm;
}

// HSDP with mixed precision on a mesh of two replicas, and its checkpoint.
double fsdp(trestle::World& world, const at::Tensor& x, const std::filesystem::path& folder) {
  // [fsdp]
  trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", world.size() / 2}});
  trestle::Sharded model(
      make_net(), mesh,
      trestle::hsdp({.precision = {.parameters = at::kBFloat16, .reduce = at::kFloat}}));
  auto optimizer = trestle::optim::make_optimizer(model.parameters(), {.name = "adamw"});

  model.backward(loss_of(model, x));
  const double norm = model.clip_grad_norm(1.0);
  optimizer->step();
  optimizer->zero_grad();
  // [fsdp]
  // [save]
  trestle::save(folder, model, *optimizer, {.step = 1});        // each rank saves its shards
  const auto state = trestle::load(folder, model, *optimizer);  // any number of ranks, any level
  const trestle::NamedTensors whole = model.state();            // unsplit, on each rank
  // [save]
  return state.step == 1 && whole.size() == 10 ? norm : -1;
}

bool train(trestle::World& world, const std::filesystem::path& folder) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor x = torch::randn({8, 32}, generator);
  const double one = ddp(world, x), other = fsdp(world, x, folder);
  if (world.rank() == 0)
    std::cout << "gradient norm: ddp " << one << ", hsdp in bf16 " << other << "\n";
  return std::abs(one - other) < 0.05 * one;  // the same net and data
}

}  // namespace

int main() {
  if (trestle::launch::read_rank_environment().world_size > 1) {
    auto world = trestle::init();
    return train(world, "coming_from_python_checkpoint") ? 0 : 1;
  }
  const auto folder =
      std::filesystem::temp_directory_path() / ("coming_from_python_" + std::to_string(getpid()));
  const auto done = trestle::spawn(4, [&](trestle::World& world) { return train(world, folder); });
  std::filesystem::remove_all(folder);
  return done[0] && done[1] && done[2] && done[3] ? 0 : 1;
}
