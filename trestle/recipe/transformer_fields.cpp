#include "trestle/recipe/make_field.h"

namespace trestle::recipe {

void add_transformer_fields(std::vector<Field>& fields) {
  using T = Recipe::Transformer;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::transformer, "transformer", member, rest...));
  };
  const Limits size{0, many};
  add(&T::config, "config",
      "gpt2, llama: sizes by name, such as gpt2 or smollm2-135m, or from a config.json of Hugging "
      "Face or its folder; empty: the fields below");
  add(&T::vocabulary, "vocabulary",
      "number of tokens; 0 = of the config, or of the tokenizer of the data; more than those of "
      "`weights`: the new tokens' rows begin as the mean of the old ones",
      size);
  add(&T::vocabulary_multiple, "vocabulary_multiple",
      "adds rows of zeros to the embedding and the head, up to a multiple of this; they have no "
      "score and no gradient, and are not saved",
      Limits{1, 1048576, {}, OnResume::MayChange});
  add(&T::context, "context", "largest number of tokens in a row; 0 = of the config, or 1024",
      size);
  add(&T::layers, "layers", "number of blocks; 0 = of the config, or 12", size);
  add(&T::heads, "heads", "attention heads of a block; 0 = of the config, or 12", size);
  add(&T::kv_heads, "kv_heads",
      "heads of keys and values, which divide `heads`; 0 = of the config, or `heads`", size);
  add(&T::head_size, "head_size",
      "rows of a head in the projections; 0 = of the config, or the width divided by `heads`",
      Limits{0, 1048576});
  add(&T::mlp, "mlp",
      "inner width of a block's MLP; 0 = of the config, or 4 times the width (llama: 8/3 times, "
      "rounded up to a multiple of 64)",
      size);
  add(&T::activation, "activation",
      "of the MLP: gelu_tanh approximates gelu by tanh; auto: as the config, or gelu_tanh for gpt2 "
      "and silu for llama",
      Limits{.choices = {"auto", "gelu_tanh", "gelu", "silu", "relu"}});
  add(&T::norm_epsilon, "norm_epsilon",
      "added to the variance in norms; 0 = of the config, or 1e-5", Limits{0, 1});
  add(&T::rope_theta, "rope_theta",
      "llama: the base of the rotary positions' wavelengths; 0 = of the config, or 10000",
      Limits{0, 1e12});
  add(&T::initial_deviation, "initial_deviation",
      "standard deviation of the initial weights, divided by sqrt(2 x layers) for projections back "
      "to the width; 0 = of the config, or 0.02",
      Limits{0, 1000});
  add(&T::tied, "tied",
      "whether the head's weight is the embedding's table; auto: as the config, or yes for gpt2 "
      "and no for llama",
      Limits{.choices = {"auto", "yes", "no"}});
  add(&T::dropout, "dropout", "share of the embedding's and the residual values set to 0",
      Limits{0, 0.99});
  add(&T::attention_dropout, "attention_dropout",
      "share of the attention's weights set to 0; needs attention = written", Limits{0, 0.99});
  add(&T::attention, "attention",
      "the core of attention: fused = libtorch's kernel, written = products and a softmax, which "
      "holds all weights in memory",
      Limits{.choices = {"fused", "written"}});
}

void add_adapter_fields(std::vector<Field>& fields) {
  using A = Recipe::Adapters;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::adapters, "adapters", member, rest...));
  };
  add(&A::rank, "adapter_rank",
      "gpt2, llama: train low-rank adapters (LoRA) of this rank, and freeze the model's own "
      "weights; 0 = train the weights",
      Limits{0, 65536});
  add(&A::alpha, "adapter_alpha",
      "adapter_rank: an adapter's product is multiplied by alpha / rank", Limits{0, 1e9});
  add(&A::dropout, "adapter_dropout", "adapter_rank: share of the adapters' inputs set to 0",
      Limits{0, 0.99});
  add(&A::targets, "adapter_targets",
      "adapter_rank: the projections with an adapter, by the names of PEFT; empty: q_proj and "
      "v_proj, of "
      "gpt2 c_attn");
  add(&A::frozen_type, "frozen_type",
      "adapter_rank: dtype of the frozen weights in memory; the computation around them stays "
      "fp32. "
      "int8: the blocks' projections, with a scale for each row; tables are bf16",
      Limits{.choices = {"fp32", "bf16", "int8"}});
  add(&A::weights, "adapter_weights",
      "adapter_rank: a folder of PEFT or of `trestle export --names peft` whose adapters are the "
      "initial ones");
}

void add_token_fields(std::vector<Field>& fields) {
  using D = Recipe::Data;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::data, "data", member, rest...));
  };
  add(&D::tokens, "tokens", "tokens: the folder that `trestle text prepare` wrote");
  add(&D::order, "order",
      "tokens: windows = consecutive blocks of the text in shuffled order; random = blocks at "
      "random places, `count` in an epoch; documents = whole documents, shuffled and packed into "
      "blocks; rows = one document in each row",
      Limits{.choices = {"windows", "random", "documents", "rows"}});
  add(&D::row_tokens, "row_tokens", "tokens: tokens of a row; 0 = the model's context",
      Limits{0, many});
  add(&D::validation_windows, "validation_windows",
      "tokens: number of evenly spaced blocks of the validation text that are evaluated; 0 = all",
      Limits{0, many});
}

}  // namespace trestle::recipe
