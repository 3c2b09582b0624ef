#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/activation_names.h"
#include "trestle/models/transformer/read_config.h"

namespace trestle::models {

namespace {

using Ordered = nlohmann::ordered_json;

[[noreturn]] void not_in_transformers(const std::string& why) {
  throw UsageError("this model has no config.json of transformers: " + why);
}

Ordered gpt2_json(const TransformerConfig& config) {
  if (!config.qkv_bias || !config.out_bias || !config.mlp_bias)
    not_in_transformers("every projection of its GPT-2 has a bias");
  if (config.kv_heads != config.heads)
    not_in_transformers(
        text("its GPT-2 has no ", config.kv_heads, " kv_heads beside ", config.heads, " heads"));
  if (config.head_size * config.heads != config.width)
    not_in_transformers(text(config.heads, " heads of ", config.head_size,
                             " rows are not the width ", config.width, " of its GPT-2"));
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", config.vocabulary},
          {"n_positions", config.context},
          {"n_ctx", config.context},
          {"n_embd", config.width},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"n_inner", config.mlp},
          {"activation_function", name_of(config.activation)},
          {"layer_norm_epsilon", config.norm_epsilon},
          {"embd_pdrop", config.dropout.embedding},
          {"resid_pdrop", config.dropout.residual},
          {"attn_pdrop", config.dropout.attention},
          {"scale_attn_weights", true}};
}

Ordered llama_json(const TransformerConfig& config) {
  const bool is_qwen = config.qkv_bias && !config.out_bias;
  if (config.out_bias && !config.qkv_bias)
    not_in_transformers("its Llama has no bias of the output projection alone");
  if (is_qwen && config.mlp_bias) not_in_transformers("the MLP of its Qwen2 has no bias");
  if (config.dropout.embedding != 0 || config.dropout.residual != 0)
    not_in_transformers("its Llama has dropout in the attention alone");
  Ordered out = {{"architectures", {is_qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
                 {"model_type", is_qwen ? "qwen2" : "llama"},
                 {"vocab_size", config.vocabulary},
                 {"max_position_embeddings", config.context},
                 {"hidden_size", config.width},
                 {"num_hidden_layers", config.layers},
                 {"num_attention_heads", config.heads},
                 {"num_key_value_heads", config.kv_heads},
                 {"head_dim", config.head_size},
                 {"intermediate_size", config.mlp},
                 {"hidden_act", name_of(config.activation)},
                 {"rms_norm_eps", config.norm_epsilon},
                 {"attention_dropout", config.dropout.attention}};
  if (is_qwen) {
    out["use_sliding_window"] = false;
  } else {
    out["attention_bias"] = config.qkv_bias;
    out["mlp_bias"] = config.mlp_bias;
  }
  // The form of transformers 4, which 5 reads too.
  using Scaling = TransformerConfig::Rope::Scaling;
  const TransformerConfig::Rope& rope = config.rope;
  out["rope_theta"] = rope.theta;
  if (rope.scaling == Scaling::None) {
    out["rope_scaling"] = nullptr;
  } else if (rope.scaling == Scaling::Linear) {
    out["rope_scaling"] = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else {
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", rope.factor},
                           {"low_freq_factor", rope.low_frequency_factor},
                           {"high_freq_factor", rope.high_frequency_factor},
                           {"original_max_position_embeddings", rope.original_context}};
  }
  return out;
}

}  // namespace

std::string to_config_json(const TransformerConfig& config) {
  Ordered out =
      config.style == TransformerConfig::Style::Gpt2 ? gpt2_json(config) : llama_json(config);
  out["initializer_range"] = config.initial_deviation;
  out["tie_word_embeddings"] = config.tied_head;
  out["bos_token_id"] = config.begin_token ? Ordered(*config.begin_token) : Ordered(nullptr);
  if (config.end_tokens.empty())
    out["eos_token_id"] = nullptr;
  else if (config.end_tokens.size() == 1)
    out["eos_token_id"] = config.end_tokens.front();
  else
    out["eos_token_id"] = config.end_tokens;
  return out.dump(2) + "\n";
}

}  // namespace trestle::models
