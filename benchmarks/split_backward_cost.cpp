// Times a stage's backward as a whole (B), and in its two halves (I and then W), in turn, for a net
// of linear layers, one of convolutions with batch norms, and one of attention blocks.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/nn/layers.h"
#include "trestle/pipeline/execute/cut.h"
#include "trestle/pipeline/execute/stage.h"

namespace {

using namespace trestle;

struct Arguments {
  int steps = 10;
  int width = 1024;  // of the linear layers; an attention block has 3/8 of it
  int channels = 64;
  bool keeps_pages = false;
};

// The layers of one stage, and a micro-batch of its inputs.
struct Net {
  nn::Layers layers = {};
  at::Tensor input = {};
};

Net linear(const Arguments& arguments) {
  Net net{.input = torch::randn({128, arguments.width})};
  for (int i = 0; i < 4; ++i)
    net.layers.add("linear" + std::to_string(i),
                   torch::nn::Sequential(torch::nn::Linear(arguments.width, arguments.width),
                                         torch::nn::ReLU()));
  return net;
}

Net convolution(const Arguments& arguments) {
  const int channels = arguments.channels;
  Net net{.input = torch::randn({4, channels, 32, 32})};
  for (int i = 0; i < 4; ++i)
    net.layers.add("convolution" + std::to_string(i),
                   torch::nn::Sequential(
                       torch::nn::Conv2d(
                           torch::nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)),
                       torch::nn::BatchNorm2d(channels), torch::nn::ReLU()));
  return net;
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : norm1(register_module("norm1", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        projection(register_module("projection", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  at::Tensor forward(at::Tensor x) {
    constexpr std::int64_t heads = 6;
    const std::int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
    const auto split = qkv(norm1(x))
                           .view({batch, tokens, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, true);
    x = x + projection(mixed.transpose(1, 2).reshape({batch, tokens, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

Net attention(const Arguments& arguments) {
  const int width = arguments.width * 3 / 8;
  Net net{.input = torch::randn({4, 128, width})};
  for (int i = 0; i < 2; ++i) net.layers.add("block" + std::to_string(i), Block(width));
  return net;
}

// The layers as the middle one of three stages.
class MiddleStage {
 public:
  explicit MiddleStage(const Net& net)
      : input_(net.input),
        graph_(graph_of(net.layers)),
        cut_(pipeline::cut(graph_, {1, static_cast<int>(net.layers.size()), 1})),
        stage_(graph_, cut_, 1, at::kCPU, /*checkpoint_segments=*/0) {}

  // Seconds of B.
  double whole() {
    pipeline::Pass pass = forward();
    const Stopwatch watch;
    const nn::Values gradients =
        stage_.backward(pass, pipeline::BackwardPart::Whole, {gradient_}, {});
    return watch.seconds();
  }

  struct Halves {
    double inputs = 0;   // seconds of I
    double weights = 0;  // of W
  };
  Halves split() {
    pipeline::Pass pass = forward();
    const Stopwatch watch;
    const nn::Values gradients =
        stage_.backward(pass, pipeline::BackwardPart::Inputs, {gradient_}, {});
    const double inputs = watch.seconds();
    stage_.accumulate_weights(pass);
    return {.inputs = inputs, .weights = watch.seconds() - inputs};
  }

 private:
  static nn::Graph graph_of(const nn::Layers& layers) {
    nn::Layers all;
    all.add("before", [](at::Tensor x) { return x; });
    all.add("stage", layers);
    all.add("after", [](at::Tensor x) { return x; });
    return all.graph();
  }

  pipeline::Pass forward() {
    pipeline::Pass pass;
    pass.inputs = {{.value = input_, .wants_gradient = true}};
    const auto outputs = stage_.forward(pass, pipeline::GraphMode::Keep, copies_, {});
    if (!gradient_.defined()) gradient_ = torch::randn_like(outputs.at(0).value);
    return pass;
  }

  at::Tensor input_, gradient_;
  nn::Graph graph_;
  pipeline::Cut cut_;
  pipeline::Stage stage_;
  nn::BufferCopies copies_;
};

nlohmann::json measure(const Net& net, int steps) {
  constexpr int warm_ups = 3;
  MiddleStage stage(net);
  std::vector<double> whole, inputs, weights;
  for (int step = -warm_ups; step < steps; ++step) {
    double together = 0;
    MiddleStage::Halves halves;
    const auto run_whole = [&] { together = stage.whole(); };
    const auto run_split = [&] { halves = stage.split(); };
    const bool whole_first = step % 2 == 0;
    whole_first ? (run_whole(), run_split()) : (run_split(), run_whole());
    if (step < 0) continue;
    whole.push_back(together);
    inputs.push_back(halves.inputs);
    weights.push_back(halves.weights);
  }
  return {{"whole_seconds", whole}, {"input_seconds", inputs}, {"weight_seconds", weights}};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Times the backward of a stage as a whole and in two halves.");
  app.add_option("--steps", arguments.steps, "Measured steps");
  app.add_option("--width", arguments.width, "Features of a linear layer");
  app.add_option("--channels", arguments.channels, "Channels of a convolution");
  app.add_flag("--keep-pages", arguments.keeps_pages, "Call cache_cpu_memory() first");
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.keeps_pages) cache_cpu_memory();
    torch::set_num_threads(1);
    torch::manual_seed(1);
    nlohmann::json report;
    report["linear"] = measure(linear(arguments), arguments.steps);
    report["convolution"] = measure(convolution(arguments), arguments.steps);
    report["attention"] = measure(attention(arguments), arguments.steps);
    std::cout << report.dump() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "split_backward_cost: " << error.what() << std::endl;
    return 1;
  }
}
