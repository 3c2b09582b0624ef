#include "trestle/models/transformer/transformer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/block.h"
#include "trestle/models/transformer/describe.h"
#include "trestle/models/transformer/embedding.h"
#include "trestle/models/transformer/head.h"
#include "trestle/tensor_parallel/plan_agreement.h"

namespace trestle::models {

std::vector<std::string> adapter_targets(const TransformerConfig& config) {
  if (config.style == TransformerConfig::Style::Gpt2) return {"c_attn", "c_proj", "c_fc"};
  return {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
}

std::vector<int> tensor_sizes(const TransformerConfig& config, int most) {
  std::vector<int> sizes;
  for (int size = 1; size <= most; ++size)
    if (config.heads % size == 0 && (config.kv_heads % size == 0 || size % config.kv_heads == 0) &&
        config.mlp >= size && table_rows(config) >= size)
      sizes.push_back(size);
  return sizes;
}

namespace {

void check_split(const TransformerConfig& config, const TransformerOptions& options,
                 std::vector<std::string>* faults) {
  const int size = options.tensor.ranks.size();
  if (size == 1 || config.heads < 1 || config.kv_heads < 1) return;
  const std::vector<int> legal =
      tensor_sizes(config, static_cast<int>(std::min<std::int64_t>(config.heads, 1024)));
  if (std::find(legal.begin(), legal.end(), size) == legal.end())
    faults->push_back(text("heads = ", config.heads, ", kv_heads = ", config.kv_heads,
                           ", mlp = ", config.mlp, " and ", table_rows(config),
                           " rows of the vocabulary cannot be split over ", size,
                           " tensor ranks, but over ", join(legal, ", ")));
}

void check(const TransformerConfig& config, const TransformerOptions& options) {
  std::vector<std::string> faults;
  for (const auto& [name, size] :
       {std::pair<const char*, std::int64_t>{"vocabulary", config.vocabulary},
        {"vocabulary_multiple", config.vocabulary_multiple},
        {"context", config.context},
        {"width", config.width},
        {"layers", config.layers},
        {"heads", config.heads},
        {"kv_heads", config.kv_heads},
        {"head_size", config.head_size},
        {"mlp", config.mlp}})
    if (size < 1) faults.push_back(text(name, " = ", size, " is below 1"));
  if (config.kv_heads > 0 && config.heads % config.kv_heads != 0)
    faults.push_back(text("kv_heads = ", config.kv_heads, " do not divide heads = ", config.heads));
  if (config.style == TransformerConfig::Style::Llama && config.head_size % 2 != 0)
    faults.push_back(text("rotary positions need an even head_size, not ", config.head_size));
  const auto check_share = [&](const char* name, double share) {
    if (!(share >= 0 && share < 1))
      faults.push_back(text(name, " dropout of ", share, " is outside of 0 to 1, without 1"));
  };
  check_share("an embedding", config.dropout.embedding);
  check_share("an attention", config.dropout.attention);
  check_share("a residual", config.dropout.residual);
  check_share("an adapter's", options.adapters.dropout);
  if (!(config.norm_epsilon >= 0 && std::isfinite(config.norm_epsilon)))
    faults.push_back(text("norm_epsilon = ", config.norm_epsilon, " is not a number of 0 or more"));
  if (config.dropout.attention > 0 && options.attention == AttentionCore::Fused)
    faults.push_back(text("attention dropout of ", config.dropout.attention,
                          " needs attention = \"written\": the fused kernel has no dropout"));
  check_split(config, options, &faults);
  const LowRankOptions& adapters = options.adapters;
  if (adapters.rank < 0) faults.push_back(text("an adapter's rank of ", adapters.rank));
  if (adapters.any()) {
    const std::vector<std::string> known = adapter_targets(config);
    for (const std::string& target : adapters.targets)
      if (std::find(known.begin(), known.end(), target) == known.end())
        faults.push_back(text("no part of the model is named '", target, "'",
                              did_you_mean(target, known), " (", join(known, ", "), ")"));
    if (adapters.targets.empty()) faults.emplace_back("the adapters have no targets");
  }
  if (faults.empty()) return;
  throw UsageError("this transformer cannot be built: " + join(faults, "; "));
}

enum class Weights { Trained, Frozen };

template <class Module>
Module frozen_if(Weights weights, Module module) {
  if (weights == Weights::Frozen)
    for (const at::Tensor& parameter : module->parameters()) parameter.set_requires_grad(false);
  return module;
}

}  // namespace

nn::Layers transformer(const TransformerConfig& config, const TransformerOptions& options) {
  check(config, options);
  tensor_parallel::refuse_different_plans(options.tensor.ranks, describe(config, options),
                                          "make different transformers");
  const FrozenType frozen = options.frozen_type;
  const Weights weights =
      options.adapters.any() || frozen != FrozenType::Float32 ? Weights::Frozen : Weights::Trained;
  const at::ScalarType tables = frozen == FrozenType::Float32 ? options.type : at::kBFloat16;
  const at::ScalarType of_blocks = frozen == FrozenType::Int8 ? at::kChar : tables;
  const auto drawn = [options](std::string module, at::ScalarType type) {
    return Drawn{options.seed, std::move(module), options.weights, type};
  };
  nn::Layers net(nn::Seed{options.seed});
  net.add("embed",
          [=] {
            return frozen_if(weights, TokenEmbedding(config, drawn("embed", tables), options.type,
                                                     options.tensor));
          })
      .keep_output("places", 1)
      .pass_on({0});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string name = text("blocks.", i);
    net.add(name,
            [=] {
              Block block(config, options.attention, options.adapters, drawn(name, of_blocks),
                          options.type, options.tensor);
              block->attention->recomputes_core = options.recompute_attention;
              if (!options.adapters.any()) return frozen_if(weights, block);
              frozen_if(weights, block->attention_norm);
              frozen_if(weights, block->mlp_norm);
              return block;
            })
        .take("places");
  }
  net.add("norm", [=] {
    return frozen_if(weights, Norm(config, options.type, options.tensor.of("norm")));
  });
  auto head = net.add("head", [=] {
    return frozen_if(weights, Head(config, drawn("head", tables), options.tensor, options.scores));
  });
  if (options.tensor.shards_tokens()) head.take("places");
  if (config.tied_head) net.tie("head.weight", "embed.tokens", &HeadImpl::weight);
  return net;
}

}  // namespace trestle::models
