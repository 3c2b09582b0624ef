// A program that trains on any number of processes, with any launcher:
//
//     torchrun --no-python --nproc-per-node 2 torchrun_program net.safetensors
//     trestle launch -n 3 -- torchrun_program net.safetensors
//     srun --ntasks 4 torchrun_program net.safetensors
//     torchrun_program                          one rank with all stages
//
// The ranks split the net by measured times into one stage per rank, train it, and write one file
// of weights.
#include <trestle/checkpoint/checkpoint_folder.h>
#include <trestle/comm/world.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

struct Residual : torch::nn::Module {
  explicit Residual(int width) {
    linear_ = register_module("linear", torch::nn::Linear(width, width));
  }
  at::Tensor forward(at::Tensor x) { return x + linear_->forward(x).tanh(); }
  torch::nn::Linear linear_ = nullptr;
};

// Layers as factories: a rank creates only its own layers. Their initial weights do not depend on
// the number of ranks.
trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{1});
  net.add("in", [] { return torch::nn::Linear(2, 64); });
  for (int i = 1; i <= 6; ++i)
    net.add("block" + std::to_string(i), [] { return std::make_shared<Residual>(64); });
  net.add("out", [] { return torch::nn::Linear(64, 1); });
  return net;
}

// Inputs: points of the plane. Targets: the height of a hill at each point.
at::Tensor points(int step) {
  const at::Tensor i = torch::arange(64, at::kFloat) + 64.0 * step;
  return torch::stack({(i * 0.618034).frac(), (i * 0.754878).frac()}, 1) * 2 - 1;
}
at::Tensor heights(const at::Tensor& points) { return (-3 * points.square().sum(1, true)).exp(); }

int work(const std::string& file) {
  // [use]
  const trestle::World world = trestle::init({.deadline = std::chrono::minutes(2)});
  const bool first = world.rank() == 0, last = world.rank() + 1 == world.size();

  trestle::Pipeline pipeline(make_net(), {.group = world.group(),
                                          .micro_batches = 4,
                                          .schedule = "1f1b",
                                          .plan = {.sample = {points(0)}},
                                          .deadline = world.group().deadline()});
  torch::optim::Adam optimizer(pipeline.parameters(), 3e-3);
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = first ? points(step) : at::Tensor();  // only the first rank reads x
    const at::Tensor y = last ? heights(points(step)) : at::Tensor();
    const double loss = pipeline.step(x, y, trestle::nn::mean_squared_error()).loss;
    optimizer.step();
    if (first && step % 25 == 24)
      std::cout << "step " << step + 1 << "  loss " << loss << std::endl;
  }
  // [use]

  // [end]
  // The last rank has the output. It broadcasts the error.
  const at::Tensor output = pipeline.evaluate(first ? points(1000) : at::Tensor());
  at::Tensor error = torch::zeros({1});
  if (last) error[0] = (output - heights(points(1000))).abs().max();
  world.group().broadcast(error, world.size() - 1).wait();
  if (!file.empty())
    trestle::checkpoint::write_tensors_over_ranks(
        file, pipeline.named_parameters(), {},
        {.rank = world.rank(), .size = world.size(), .all_gather = [&](const std::string& mine) {
           return world.group().all_gather_bytes(mine);
         }});
  if (first)
    std::cout << world.size() << " ranks, started by " << world.started_by()
              << "; largest error on new points " << error.item<float>() << "\n";
  // [end]
  return error.item<float>() < 0.2F ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // [main]
  try {
    return work(argc > 1 ? argv[1] : "");
  } catch (const trestle::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;  // a usage error: --max-restarts does not retry it
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  // [main]
}
