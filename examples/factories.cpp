// Layers as factories: made when they are needed, each on its way to its device, with weights that
// do not depend on what else is made; a parameter that two layers share; gradients clipped over all
// stages.
#include <trestle/trestle.h>

#include <iostream>

namespace {

constexpr int words = 50;
constexpr int width = 16;

// [factories]
trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{7});
  net.add("embed", [] { return torch::nn::Embedding(words, width); });
  for (int i = 1; i <= 2; ++i) {
    net.add("fc" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
    net.add("tanh" + std::to_string(i), [](at::Tensor x) { return x.tanh(); });
  }
  net.add("head",
          [] { return torch::nn::Linear(torch::nn::LinearOptions(width, words).bias(false)); });
  net.add("scores", [](at::Tensor x) { return x.transpose(1, 2); });  // [N, words, T]
  net.tie("head.weight", "embed.weight");                             // one tensor, two layers
  return net;
}
// [factories]

bool same_weights(const trestle::nn::Layer& a, const trestle::nn::Layer& b) {
  return a.parameters()[0].equal(b.parameters()[0]);
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(2);

  // [part]
  const trestle::nn::Graph whole = make_net().graph();  // nothing is made yet
  for (const auto& layer : whole.layers) layer.module.make();
  const trestle::nn::Graph part = make_net().graph();
  part.layers[3].module.make();  // "fc2" alone
  const bool same = same_weights(part.layers[3], whole.layers[3]);
  // [part]
  std::cout << "fc2 made alone has the whole model's weights: " << (same ? "yes" : "no") << "\n";

  // The layers that share a parameter go into one stage.
  trestle::nn::Layers net = make_net();
  trestle::Pipeline pipeline(net, {.devices = devices, .balance = {6, 1}, .micro_batches = 2});
  torch::optim::SGD optimizer(pipeline.parameters(), 0.5);
  const at::Tensor text = torch::arange(24).remainder(words).reshape({4, 6});
  double first = 0;
  double last = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    last = pipeline.step(text, text + 1, trestle::nn::cross_entropy()).loss;
    if (step == 0) first = last;
    pipeline.clip_grad_norm(1.0);
    optimizer.step();
  }
  std::cout << "loss " << first << " -> " << last << " with " << pipeline.parameters().size()
            << " parameter tensors\n";
  return same && last < first ? 0 : 1;
}
