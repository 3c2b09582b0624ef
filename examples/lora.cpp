// Fine-tunes a small language model with low-rank adapters beside frozen int8 weights, saves the
// adapters as Python's PEFT does, and loads them beside the unchanged weights.
#include <trestle/trestle.h>

#include <iostream>

#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/peft_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"

int main() {
  trestle::models::TransformerConfig config;  // GPT-2, made smaller
  config.vocabulary = 256;
  config.context = 32;
  config.width = 64;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_size = 16;
  config.mlp = 256;
  config.initial_deviation = 0.15;  // drawn weights in the place of trained ones
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "trestle_lora_example";
  std::filesystem::create_directories(folder);
  // [use]
  const trestle::models::LowRankOptions adapters{
      .rank = 8, .alpha = 32, .targets = {"c_attn", "c_fc", "c_proj"}};
  const trestle::models::TransformerOptions options{
      .seed = 1, .adapters = adapters, .frozen_type = trestle::models::FrozenType::Int8};
  trestle::nn::Layers net = trestle::models::transformer(config, options);
  // Public weights: checkpoint::load_weights(models::public_views(...), "model.safetensors").

  std::vector<at::Tensor> trained;
  std::int64_t frozen = 0;
  for (const at::Tensor& parameter : net.parameters())
    if (parameter.requires_grad())
      trained.push_back(parameter);
    else
      frozen += parameter.numel();

  const at::Tensor ids = (torch::arange(8 * 33) * 7 % 256).view({8, 33});
  const at::Tensor inputs = ids.narrow(1, 0, 32), next = ids.narrow(1, 1, 32);
  const trestle::nn::Loss loss = trestle::nn::token_cross_entropy();
  trestle::Pipeline pipeline(net, {.devices = trestle::parse_devices("cpu"), .balance = {5}});
  torch::optim::AdamW optimizer(trained, torch::optim::AdamWOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    last = pipeline.step(inputs, next, loss).loss;
    if (step == 0) first = last;
    optimizer.step();
  }

  const auto views = trestle::models::adapter_views(config, net.named_parameters());
  trestle::checkpoint::write_tensors(folder / "adapter_model.safetensors", views);
  trestle::write_file(folder / "adapter_config.json",
                      trestle::models::to_peft_config(adapters, config.style));

  trestle::nn::Layers again = trestle::models::transformer(config, options);
  trestle::checkpoint::load_weights(
      trestle::models::adapter_views(config, again.named_parameters()),
      folder / "adapter_model.safetensors",
      {.rename = [](const std::string& name) { return name; }});
  const bool same = at::equal(again.forward(inputs), net.forward(inputs));
  trestle::models::merge_adapters(again);  // the adapters' products become part of the weights
  // [use]
  const double apart = (again.forward(inputs) - net.forward(inputs)).abs().max().item<double>();
  std::cout << trained.size() << " adapter tensors beside " << frozen << " frozen numbers\n"
            << "loss " << first << " before, " << last << " after\n"
            << "loaded again: " << (same ? "the same scores" : "OTHER scores")
            << ", merged: at most " << apart << " apart\n";
  return last < 0.5 * first && same && apart < 0.2 ? 0 : 1;
}
