#include "trestle/models/transformer/describe.h"

#include <c10/core/ScalarType.h>

#include "trestle/base/text.h"
#include "trestle/models/transformer/activation_names.h"

namespace trestle::models {

namespace {

const char* yes_or_no(bool holds) { return holds ? "yes" : "no"; }

std::string describe_rope(const TransformerConfig::Rope& rope) {
  return text("rope theta ", rope.theta, ", scaling ", static_cast<int>(rope.scaling), ", factor ",
              rope.factor, ", low ", rope.low_frequency_factor, ", high ",
              rope.high_frequency_factor, ", original context ", rope.original_context, "\n");
}

std::string describe_adapters(const LowRankOptions& adapters) {
  if (!adapters.any()) return "no adapters\n";
  return text("adapters of rank ", adapters.rank, ", alpha ", adapters.alpha, ", dropout ",
              adapters.dropout, ", for ", join(adapters.targets, ", "), "\n");
}

}  // namespace

std::string describe(const TransformerConfig& config, const TransformerOptions& options) {
  const auto& dropout = config.dropout;
  return text(
      "style ", config.style == TransformerConfig::Style::Gpt2 ? "gpt2" : "llama", "\nvocabulary ",
      config.vocabulary, "\nvocabulary_multiple ", config.vocabulary_multiple, "\ncontext ",
      config.context, "\nwidth ", config.width, "\nlayers ", config.layers, "\nheads ",
      config.heads, "\nkv_heads ", config.kv_heads, "\nhead_size ", config.head_size, "\nmlp ",
      config.mlp, "\nactivation ", name_of(config.activation), "\nnorm_epsilon ",
      config.norm_epsilon, "\ntied_head ", yes_or_no(config.tied_head), "\nbiases of qkv ",
      yes_or_no(config.qkv_bias), ", out ", yes_or_no(config.out_bias), ", mlp ",
      yes_or_no(config.mlp_bias), "\ninitial_deviation ", config.initial_deviation,
      "\ndropout of the embedding ", dropout.embedding, "\ndropout of residuals ", dropout.residual,
      "\ndropout of the attention ", dropout.attention, "\n", describe_rope(config.rope), "seed ",
      options.seed, "\ninitial weights ", static_cast<int>(options.weights), "\ntype ",
      c10::toString(options.type), "\nattention core ", static_cast<int>(options.attention),
      "\nsequence parallel ", yes_or_no(options.tensor.sequence), "\nscores ",
      options.scores == SplitScores::Own ? "own rows" : "joined", "\nrecompute_attention ",
      yes_or_no(options.recompute_attention), "\n", describe_adapters(options.adapters),
      "frozen type ", static_cast<int>(options.frozen_type), "\n");
}

}  // namespace trestle::models
