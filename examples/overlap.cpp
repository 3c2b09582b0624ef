// Communication that overlaps the backward. Two ranks shard a model (FSDP), record three steps, and
// draw them. Strips show all-gathers and reductions below the forwards and backwards that they
// overlap.
//
//   ./overlap [overlap.svg]
#include <torch/torch.h>
#include <trestle/trestle.h>

#include <iostream>

namespace {

constexpr auto hide = trestle::view::MemoryCharts::Hide;  // records hold no memory curves
constexpr int width = 384, layers = 4, steps = 3;

trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{1});
  for (int i = 0; i < layers; ++i) {
    net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
    net.add("act" + std::to_string(i), torch::nn::GELU());
  }
  return net;
}

bool train(trestle::World& world, const std::string& file) {
  const trestle::DeviceMesh mesh(world, {{"shard", world.size()}});
  trestle::Sharded net(make_net(), mesh, trestle::fsdp());
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  const auto step = [&] {
    optimizer.zero_grad();
    net.backward(net.forward(torch::ones({256, width})).square().mean());
    optimizer.step();
  };
  step();  // the first step records the order of units
  // [record]
  net.start_recording();
  for (int i = 0; i < steps; ++i) step();
  const trestle::ShardRecord record = net.stop_recording();
  const auto timeline = trestle::shard_timeline(record, world.group());  // all ranks
  if (world.rank() == 0)
    trestle::write_file(
        file, trestle::view::to_svg({timeline}, {.title = "FSDP, two ranks", .memory = hide}));
  // [record]
  if (world.rank() == 0)
    std::cout << timeline.events.size() << " events in " << file << "; "
              << static_cast<int>(100 * trestle::hidden_share(record))
              << " % of the communication time overlapped with computation\n";
  return timeline.events.size() >= static_cast<std::size_t>(world.size() * steps * layers * 4);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "overlap.svg";
  const auto whole = trestle::spawn(2, [&](trestle::World& world) { return train(world, file); });
  return whole[0] && whole[1] ? 0 : 1;
}
