#include "trestle/models/transformer/transformer.h"

#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/block.h"
#include "trestle/models/transformer/embedding.h"
#include "trestle/models/transformer/head.h"

namespace trestle::models {

namespace {

void check(const TransformerConfig& config, const TransformerOptions& options) {
  std::vector<std::string> faults;
  for (const auto& [name, size] :
       {std::pair<const char*, std::int64_t>{"vocabulary", config.vocabulary},
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
  if (config.dropout.attention > 0 && options.attention == AttentionCore::Fused)
    faults.push_back(text("attention dropout of ", config.dropout.attention,
                          " needs attention = \"written\": the fused kernel has no dropout"));
  if (faults.empty()) return;
  throw UsageError("this transformer cannot be built: " + join(faults, "; "));
}

}  // namespace

nn::Layers transformer(const TransformerConfig& config, const TransformerOptions& options) {
  check(config, options);
  const auto drawn = [seed = options.seed](std::string module) {
    return Drawn{seed, std::move(module)};
  };
  nn::Layers net(nn::Seed{options.seed});
  net.add("embed", [=] { return TokenEmbedding(config, drawn("embed")); })
      .keep_output("places", 1)
      .pass_on({0});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string name = text("blocks.", i);
    net.add(name, [=, core = options.attention] { return Block(config, core, drawn(name)); })
        .take("places");
  }
  net.add("norm", [=] { return Norm(config); });
  net.add("head", [=] { return Head(config, drawn("head")); });
  if (config.tied_head) net.tie("head.weight", "embed.tokens", &HeadImpl::weight);
  return net;
}

}  // namespace trestle::models
