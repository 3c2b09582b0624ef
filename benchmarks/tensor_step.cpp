// Measures training steps of a decoder whose layers are split over processes: `trestle launch`
// starts them. One process computes the plain step.
#include <torch/torch.h>

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/comm/world.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/factory.h"
#include "trestle/plan/transformer_memory.h"
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

namespace {

using namespace trestle;

struct Arguments {
  std::string way = "tensor";  // tensor, sequence, alone
  int steps = 8, layers = 4, width = 512, heads = 8, vocabulary = 8192, context = 256, batch = 8;
};

// The most memory of this process so far, in bytes.
std::int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// Weights, gradients, AdamW's state and what the blocks keep for their backward, on rank 0.
Bytes predicted_bytes(const Arguments& arguments, std::int64_t parameters, int ranks) {
  const plan::BlockSizes sizes{.batch = arguments.batch,
                               .tokens = arguments.context,
                               .width = arguments.width,
                               .heads = arguments.heads,
                               .kv_heads = arguments.heads,
                               .head_size = arguments.width / arguments.heads,
                               .mlp = std::int64_t{4} * arguments.width};
  const plan::BlockSettings settings{.numbers = plan::BlockSettings::Numbers::Float32,
                                     .tensor = ranks,
                                     .sequence = arguments.way == "sequence"};
  const plan::StateBytes state;
  return static_cast<Bytes>(state.total()) * parameters +
         arguments.layers * total_of(plan::kept_by_block(sizes, settings));
}

nlohmann::json time_steps(const Arguments& arguments, const World& world) {
  const std::int64_t before = peak_bytes();
  models::TransformerConfig config;
  config.vocabulary = arguments.vocabulary;
  config.context = arguments.context;
  config.width = arguments.width;
  config.layers = arguments.layers;
  config.heads = config.kv_heads = arguments.heads;
  config.head_size = config.width / config.heads;
  config.mlp = 4 * config.width;
  config.tied_head = false;
  models::TransformerOptions options{.scores = models::SplitScores::Own};
  if (world.size() > 1)
    options.tensor = {
        .ranks = tensor_parallel::TensorRanks(world.group().with_check(comm::Check::Off)),
        .sequence = arguments.way == "sequence"};
  std::optional<tensor_parallel::TensorRanks::AloneScope> alone;
  if (arguments.way == "alone") alone.emplace(options.tensor.ranks);
  const nn::Layers net = models::transformer(config, options);
  const nn::Graph graph = net.graph();
  const nn::Loss loss = tensor_parallel::vocabulary_cross_entropy(
      {options.tensor.ranks, config.vocabulary, config.vocabulary});
  const auto optimizer =
      optim::make_optimizer(net.parameters(), {.name = "adamw", .learning_rate = 1e-3});
  torch::manual_seed(1);
  const at::Tensor ids =
      torch::randint(config.vocabulary, {arguments.batch, arguments.context + 1}, torch::kLong);
  const at::Tensor input = ids.narrow(1, 0, arguments.context).contiguous();
  const at::Tensor target = ids.narrow(1, 1, arguments.context).contiguous();
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : net.parameters()) parameters += parameter.numel();
  std::vector<double> gradients, updates;
  double last = 0;
  for (int step = -2; step < arguments.steps; ++step) {
    world.group().barrier();
    const Stopwatch watch;
    optimizer->zero_grad();
    const at::Tensor value = loss.value(nn::run(graph, {input}).at(0), target);
    value.backward();
    const double gradient = watch.seconds();
    optimizer->step();
    world.group().barrier();
    if (step == -2 && world.rank() == 0) std::cout << "first step" << std::endl;
    if (step < 0) continue;
    gradients.push_back(gradient);
    updates.push_back(watch.seconds() - gradient);
    last = value.item<double>();
  }
  return {{"gradients_seconds", gradients},
          {"optimizer_seconds", updates},
          {"parameters", parameters},
          {"peak_bytes", peak_bytes() - before},
          {"predicted_bytes", predicted_bytes(arguments, parameters, world.size())},
          {"loss", last}};
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("A training step of a decoder whose layers are split over processes.");
  Arguments arguments;
  app.add_option("--way", arguments.way, "tensor, sequence, or alone: without messages")
      ->check(CLI::IsMember({"tensor", "sequence", "alone"}));
  app.add_option("--steps", arguments.steps, "Measured steps");
  app.add_option("--layers", arguments.layers, "Number of blocks");
  app.add_option("--width", arguments.width, "Width of the blocks");
  app.add_option("--heads", arguments.heads, "Number of heads");
  app.add_option("--vocabulary", arguments.vocabulary, "Number of tokens");
  app.add_option("--context", arguments.context, "Tokens of a row");
  app.add_option("--batch", arguments.batch, "Rows");
  CLI11_PARSE(app, count, words);
  try {
    at::set_num_threads(1);
    cache_cpu_memory();
    const World world = init();
    const nlohmann::json report = time_steps(arguments, world);
    if (world.rank() == 0) std::cout << report << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "tensor_step: " << error.what() << "\n";
    return 1;
  }
}
