// The planner chooses how to train a net on four devices: replicas or shards of its state, stages,
// micro-batches and recomputation. The plan then runs on four ranks, which are threads. Its losses
// are those of the plain net.
#include <trestle/trestle.h>

#include <cmath>
#include <iostream>

using namespace trestle::literals;

namespace {

constexpr std::int64_t batch = 32;

trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{7});
  for (int i = 0; i < 6; ++i) {
    net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(64, 64); });
    net.add("tanh" + std::to_string(i), [](at::Tensor x) { return x.tanh(); });
  }
  net.add("head", [] { return torch::nn::Linear(64, 1); });
  return net;
}

at::Tensor inputs() { return torch::arange(batch * 64).reshape({batch, 64}).sin(); }
at::Tensor targets() { return inputs().sum(1, true).cos(); }

// The losses of five steps on this rank's share of the batch.
std::vector<double> train(const trestle::World& world, const trestle::FoundPlan& plan,
                          const trestle::Device& device) {
  // [run]
  const trestle::DeviceMesh mesh(world, plan.mesh);
  trestle::ParallelOptions options = plan.options;
  options.options.devices = {device};
  trestle::Parallel parallel = trestle::parallelize(make_net(), mesh, options);
  // [run]
  const auto optimizer = trestle::optim::make_optimizer(parallel.parameters(), {.name = "adamw"});
  const std::int64_t share = batch / parallel.replicas(), begin = share * parallel.replica();
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    parallel.zero_grad();
    losses.push_back(parallel
                         .step(inputs().narrow(0, begin, share), targets().narrow(0, begin, share),
                               trestle::nn::mean_squared_error())
                         .loss);
    optimizer->step();
  }
  return losses;
}

std::vector<double> train_plain() {
  trestle::nn::Layers net = make_net();
  const auto optimizer = trestle::optim::make_optimizer(net.parameters(), {.name = "adamw"});
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    net.zero_grad();
    const at::Tensor loss =
        trestle::nn::mean_squared_error().value(net.forward(inputs()), targets());
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(4);  // before the first backward
  // [find]
  const trestle::FoundPlan plan =
      trestle::find_plan(make_net(), inputs(), targets(), trestle::nn::mean_squared_error(),
                         {.devices = 4, .batch = batch, .memory = 8_MiB});
  std::cout << plan.report;
  // [find]
  const auto losses = trestle::spawn(plan.strategy.devices(), [&](trestle::World& world) {
    return train(world, plan, devices[static_cast<std::size_t>(world.rank())]);
  });
  const std::vector<double> plain = train_plain();
  bool same = true;
  for (std::size_t step = 0; step < plain.size(); ++step)
    same = same && std::abs(losses[0][step] - plain[step]) < 1e-5;
  std::cout << "loss " << losses[0].front() << " -> " << losses[0].back()
            << "; the losses of the plain net " << (same ? "are the same" : "differ") << "\n";
  return same ? 0 : 1;
}
