// Layers as factories. The pipeline creates each layer when it moves it to its device. A layer's
// initial weights do not depend on the other layers. Two layers share a parameter, and gradients
// are clipped by their norm over all stages.
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

  // [one_layer]
  const trestle::nn::Graph whole = make_net().graph();  // no layer is created yet
  for (const auto& layer : whole.layers) layer.module.make();
  const trestle::nn::Graph alone = make_net().graph();
  alone.layers[3].module.make();  // only "fc2"
  const bool same = same_weights(alone.layers[3], whole.layers[3]);
  // [one_layer]
  std::cout << "fc2 created alone has the same weights as in the whole model: "
            << (same ? "yes" : "no") << "\n";

  // Layers that share a parameter must be in one stage.
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
