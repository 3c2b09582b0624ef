// Measures training steps of a decoder whose layers are split over processes: `trestle launch`
// starts them. One process computes the plain step.
#include <torch/torch.h>

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
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

namespace {

using namespace trestle;

struct Arguments {
  std::string way = "tensor";  // tensor, sequence, alone
  int steps = 8, layers = 4, width = 512, heads = 8, vocabulary = 8192, context = 256, batch = 8;
};

nlohmann::json time_steps(const Arguments& arguments, const World& world) {
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
    if (step < 0) continue;
    gradients.push_back(gradient);
    updates.push_back(watch.seconds() - gradient);
    last = value.item<double>();
  }
  return {{"gradients_seconds", gradients},
          {"optimizer_seconds", updates},
          {"parameters", parameters},
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
