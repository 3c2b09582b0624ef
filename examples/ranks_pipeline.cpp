// A pipeline over several ranks. Each rank creates only its own layers. A skip goes directly from
// the first rank to the last. The losses equal those of one process bit for bit.
//
//     ranks_pipeline                            three ranks, threads of this process
//     trestle launch -n 2 -- ranks_pipeline     two processes
#include <trestle/comm/threads/spawn.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

constexpr int width = 32;

// [net]
trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{7});
  net.add("in", [] { return torch::nn::Linear(8, width); }).keep_output("fine");
  for (int i = 1; i <= 3; ++i) {
    net.add("fc" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
    net.add("tanh" + std::to_string(i), [](at::Tensor x) { return x.tanh(); });
  }
  net.add("join", [](at::Tensor x, at::Tensor skip) { return x + skip; }).take("fine");
  net.add("out", [] { return torch::nn::Linear(width, 1); });
  return net;
}
// [net]

// Splits the layers evenly over the stages.
std::vector<int> even(int layers, int stages) {
  std::vector<int> balance;
  for (int s = 0; s < stages; ++s)
    balance.push_back(layers * (s + 1) / stages - layers * s / stages);
  return balance;
}

// Trains for 20 steps and returns the losses. Without a `group`, one process has all stages.
std::vector<double> train(const trestle::comm::Group& group, int stages) {
  const at::Tensor x = torch::arange(32 * 8).reshape({32, 8}).sin();
  const at::Tensor y = x.sum(1, true).cos();
  // [use]
  const trestle::nn::Layers net = make_net();  // no layer is created yet
  trestle::Pipeline pipeline(net, {.group = group,
                                   .balance = even(static_cast<int>(net.size()), stages),
                                   .micro_batches = 4,
                                   .schedule = "1f1b",
                                   .cores = {.threads = 1}});
  torch::optim::Adam optimizer(pipeline.parameters(), 1e-2);  // this rank's parameters
  const bool first = pipeline.has_stage(0), last = pipeline.has_stage(stages - 1);
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const auto result = pipeline.step(first ? x : at::Tensor(), last ? y : at::Tensor(),
                                      trestle::nn::mean_squared_error());
    pipeline.clip_grad_norm(1.0);  // the norm is over all ranks
    optimizer.step();
    losses.push_back(result.loss);  // the same on every rank
  }
  // [use]
  if (!group.valid()) return losses;
  // [gather]
  const auto timeline = pipeline.gather_timeline();
  const auto parameters = group.all_gather_bytes(std::to_string(pipeline.parameters().size()));
  if (group.rank() == 0) {
    for (int r = 0; r < group.size(); ++r)
      std::cout << "rank " << r << " owns " << parameters[r] << " parameter tensors\n";
    std::cout << trestle::view::to_text_grid(timeline, {.columns = 80});
  }
  // [gather]
  return losses;
}

// The work of each rank.
bool work(const trestle::World& world) {
  const auto losses = train(world.group(), world.size());
  if (world.rank() != 0) return losses.back() < losses.front();
  const bool same = losses == train({}, world.size());
  std::cout << "loss " << losses.front() << " -> " << losses.back() << " on " << world.size()
            << " ranks (" << world.backend() << "); the losses of one process "
            << (same ? "are the same" : "differ") << "\n";
  return same && losses.back() < losses.front();
}

}  // namespace

int main() {
  const trestle::World world = trestle::init();
  if (world.size() > 1) return work(world) ? 0 : 1;
  for (const bool right : trestle::spawn(3, [](trestle::World& rank) { return work(rank); }))
    if (!right) return 1;
  return 0;
}
