// Skip connections: taps, layers with several outputs, optional arguments, and the error for wrong
// wiring. The pipeline has three stages; its skips jump over the middle one.
#include <trestle/trestle.h>

#include <iostream>
#include <optional>
#include <tuple>

namespace {

// [tuple]
// A layer with several outputs returns a tuple.
struct SplitImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 16));
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const auto halves = linear(x).chunk(2, 1);
    return {halves[0], halves[1]};
  }
};
TORCH_MODULE(Split);
// [tuple]

// An optional argument is a std::optional.
at::Tensor scale(at::Tensor x, std::optional<at::Tensor> by) { return by ? x * *by : x; }
at::Tensor add(at::Tensor x, at::Tensor skip) { return x + skip; }

trestle::nn::Layers make_net() {
  // [taps]
  trestle::nn::Layers net;
  net.add("in", torch::nn::Linear(4, 8)).keep_output("a");
  net.add("split", Split()).keep_output("gate", 1);  // the second output; the first feeds "tanh"
  net.add("tanh", torch::nn::Tanh()).keep_input("b");
  net.add("first", add).take("a");   // one kept value
  net.add("second", add).take("a");  // may feed many layers
  net.add("third", add).take("b");
  net.add("gated", scale).take("gate");
  net.add("out", torch::nn::Linear(8, 2));
  // [taps]
  return net;
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(3);
  torch::manual_seed(0);
  trestle::nn::Layers net = make_net();
  const at::Tensor x = torch::randn({6, 4});
  const at::Tensor expected = net.forward(x);  // the plain model

  // [wrong]
  trestle::nn::Layers wrong;
  wrong.add("one", torch::nn::Linear(4, 4)).keep_output("skip");
  wrong.add("two", add).take("skpi");
  wrong.add("two", torch::nn::Linear(4, 4));
  try {
    wrong.graph();
  } catch (const trestle::UsageError& error) {
    std::cout << error.what() << "\n\n";  // lists every mistake, by name
  }
  // [wrong]

  trestle::Pipeline pipeline(net, {.devices = devices, .balance = {3, 1, 4}, .micro_batches = 3});
  for (const auto& route : pipeline.schedule().routes) {
    std::cout << (route.skip ? "skip " : "main lane ") << route.name << ": stage "
              << route.from_stage << " to " << route.to_stage << "\n";
  }
  const at::Tensor output = pipeline.evaluate(x).to(at::kCPU);
  const double difference = (output - expected).abs().max().item<double>();
  std::cout << "largest difference from the plain model: " << difference << "\n";
  return difference < 1e-6 ? 0 : 1;
}
