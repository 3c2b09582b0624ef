// Measures a training step of a GPT with trestle: random bytes as tokens, AdamW.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/measured_steps.h"
#include "trestle/base/error.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/trestle.h"

namespace {

struct Plan {
  std::string device = "cpu";
  std::string precision = "fp32";
  int layers = 10, heads = 6, context = 256, vocabulary = 256;
};

void measure(const benchmarks::Job& job, const Plan& plan) {
  trestle::models::TransformerConfig config;
  config.vocabulary = plan.vocabulary;
  config.context = plan.context;
  config.width = job.width;
  config.layers = plan.layers;
  config.heads = config.kv_heads = plan.heads;
  config.head_size = config.width / config.heads;
  config.mlp = 4 * config.width;
  trestle::PipelineOptions options;
  options.devices = trestle::parse_devices(plan.device);
  if (options.devices[0].torch.is_cpu()) trestle::cache_cpu_memory();
  options.balance = {plan.layers + 3};
  options.numerics.precision = trestle::precision::parse_precision(plan.precision);
  trestle::Pipeline pipeline(trestle::models::transformer(config), options);
  const at::Tensor ids = torch::randint(plan.vocabulary, {job.batch, plan.context}, torch::kLong);
  const at::Tensor next = torch::randint(plan.vocabulary, {job.batch, plan.context}, torch::kLong);
  const trestle::nn::Loss loss = trestle::nn::token_cross_entropy();
  const auto optimizer = trestle::optim::make_optimizer(pipeline.parameters(),
                                                        {.name = "adamw", .learning_rate = 1e-3});
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : pipeline.parameters()) parameters += parameter.numel();
  nlohmann::ordered_json report{{"parameters", parameters}, {"loss", 0.0}};
  const auto times = benchmarks::run_steps(
      job,
      [&] {
        pipeline.zero_grad();
        report["loss"] = pipeline.step(ids, next, loss).loss;
      },
      [&] { optimizer->step(); });
  benchmarks::print(report, times);
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("A training step of a GPT with trestle.");
  benchmarks::Job job{.width = 384, .batch = 16};
  Plan plan;
  benchmarks::add_flags(job, app);
  app.add_option("--device", plan.device, "cpu or virtual:1");
  app.add_option("--precision", plan.precision, "fp32 or bf16");
  app.add_option("--layers", plan.layers, "Number of blocks");
  app.add_option("--heads", plan.heads, "Number of heads");
  app.add_option("--context", plan.context, "Tokens of a row");
  app.add_option("--vocabulary", plan.vocabulary, "Number of tokens");
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job, plan);
  } catch (const std::exception& error) {
    std::cerr << "gpt_step: " << error.what() << "\n";
    return dynamic_cast<const trestle::UsageError*>(&error) ? 2 : 1;
  }
}
