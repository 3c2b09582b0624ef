// Four ranks at level Parameters train and save; each holds a quarter of the model and its state.
// Two ranks at level OptimizerState resume from the checkpoint, and so does one process. Both reach
// the loss of a training that never stopped.
#include <trestle/comm/threads/spawn.h>
#include <trestle/trestle.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <iostream>

namespace {

namespace fs = std::filesystem;

constexpr int batch = 32, steps = 40;

trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{7});
  net.add("in", [] { return torch::nn::Linear(8, 33); });
  net.add("tanh", [](at::Tensor x) { return x.tanh(); });
  net.add("out", [] { return torch::nn::Linear(33, 1); });
  return net;
}

std::pair<at::Tensor, at::Tensor> batch_of(std::int64_t step) {
  const at::Tensor x = (torch::arange(batch * 8).reshape({batch, 8}) + step).sin();
  return {x, x.sum(1, true).cos()};
}

// Trains at one level. Resumes from the checkpoint `last` if it exists. Returns the final loss.
double train(const trestle::World& world, trestle::ShardLevel level, const fs::path& last,
             int stop_at) {
  // [loop]
  const trestle::DeviceMesh mesh(world, {{"shard", world.size()}});
  trestle::Sharded sharded(make_net(), mesh, {.level = level});
  const auto optimizer = trestle::optim::make_optimizer(sharded.parameters(),
                                                        {.name = "adamw", .learning_rate = 1e-2});
  trestle::checkpoint::TrainState state;
  if (trestle::checkpoint::is_checkpoint(last)) state = trestle::load(last, sharded, *optimizer);

  double loss = 0;
  while (state.step < stop_at) {
    const auto [x, y] = batch_of(state.step);
    const auto share = batch / world.size(), begin = share * world.rank();
    optimizer->zero_grad();
    const at::Tensor own =
        torch::mse_loss(sharded.forward(x.narrow(0, begin, share)), y.narrow(0, begin, share));
    sharded.backward(own);
    optimizer->step();
    ++state.step;
    at::Tensor sum = own.detach().clone();
    world.group().all_reduce(sum).wait();
    loss = sum.item<double>() / world.size();
  }
  trestle::save(last, sharded, *optimizer, state);
  // [loop]
  return loss;
}

// Resumes in one process, with the plain model.
double train_alone(const fs::path& last) {
  // [alone]
  const trestle::nn::Layers net = make_net();
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0));
  trestle::checkpoint::TrainState state = trestle::load(last, net, optimizer);
  // [alone]
  double loss = 0;
  for (; state.step < steps; ++state.step) {
    const auto [x, y] = batch_of(state.step);
    optimizer.zero_grad();
    const at::Tensor whole = torch::mse_loss(net.forward(x), y);
    whole.backward();
    optimizer.step();
    loss = whole.item<double>();
  }
  return loss;
}

}  // namespace

int main() {
  const fs::path folder =
      fs::temp_directory_path() / ("sharded_saving_" + std::to_string(getpid()));
  const fs::path last = folder / "last";
  fs::create_directories(folder);
  const auto on = [](int ranks, trestle::ShardLevel level, const fs::path& path, int stop_at) {
    return trestle::spawn(
        ranks, [&](trestle::World& world) { return train(world, level, path, stop_at); })[0];
  };
  const double expected = on(4, trestle::ShardLevel::Parameters, folder / "whole", steps);
  const double half = on(4, trestle::ShardLevel::Parameters, last, steps / 2);
  std::cout << "4 ranks, sharded parameters: loss " << half << " after " << steps / 2
            << " steps, saved\n";
  // [one_file]
  const trestle::checkpoint::CheckpointFolder saved(last);
  trestle::checkpoint::write_as_one_file(saved, folder / "weights.safetensors");
  // [one_file]
  for (const auto& tensor : trestle::checkpoint::list_weights(folder / "weights.safetensors"))
    std::cout << "  " << tensor.name << " " << at::IntArrayRef(tensor.shape) << "\n";
  const double alone = train_alone(last);
  const double two = on(2, trestle::ShardLevel::OptimizerState, last, steps);
  std::cout << "after " << steps << " steps: 2 ranks, sharded optimizer state: loss " << two
            << "; one process: " << alone << "; never stopped: " << expected << "\n";
  fs::remove_all(folder);
  const auto near = [&](double loss) { return std::abs(loss - expected) < 1e-4 * expected; };
  return near(two) && near(alone) && expected < half ? 0 : 1;
}
