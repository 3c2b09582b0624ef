#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/models/transformer/read_config.h"

namespace trestle::models {
namespace {

using support::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Activation = TransformerConfig::Activation;
using Scaling = TransformerConfig::Rope::Scaling;
using Style = TransformerConfig::Style;

// As published, without keys of other tasks.
constexpr std::string_view gpt2_json = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_use_proj": true,
  "vocab_size": 50257})";

// Written by transformers 4.
constexpr std::string_view llama_json = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "vocab_size": 128256})";

// The same, written by transformers 5.
constexpr std::string_view llama5_json = R"({
  "attention_bias": false, "bos_token_id": 128000, "dtype": "bfloat16",
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
  "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
                      "rope_type": "llama3"},
  "vocab_size": 128256})";

TransformerConfig parse(std::string_view json, std::string_view generation = "") {
  return parse_config(json, generation, "config.json");
}

// The JSON with one value replaced, or with a member added at its beginning.
std::string with(std::string_view json, const std::string& from, const std::string& to) {
  std::string out(json);
  const auto at = out.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return out.replace(at, from.size(), to);
}
std::string with(std::string_view json, const std::string& member) {
  return with(json, "{", "{" + member + ", ");
}

std::string refusal(const std::string& json) {
  return message_of<FormatError>([&] { parse(json); });
}

TEST(Config, ReadsGpt2AsPublished) {
  const TransformerConfig config = parse(gpt2_json);
  EXPECT_EQ(config.style, Style::Gpt2);
  EXPECT_EQ(config.vocabulary, 50257);
  EXPECT_EQ(config.context, 1024);
  EXPECT_EQ(config.width, 768);
  EXPECT_EQ(config.layers, 12);
  EXPECT_EQ(config.heads, 12);
  EXPECT_EQ(config.kv_heads, 12);
  EXPECT_EQ(config.head_size, 64);
  EXPECT_EQ(config.mlp, 3072);
  EXPECT_EQ(config.activation, Activation::GeluTanh);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_TRUE(config.tied_head && config.qkv_bias && config.out_bias && config.mlp_bias);
  EXPECT_EQ(config.dropout.embedding, 0.1);
  EXPECT_EQ(config.dropout.residual, 0.1);
  EXPECT_EQ(config.dropout.attention, 0.1);
  EXPECT_EQ(config.begin_token, 50256);
  EXPECT_THAT(config.end_tokens, ElementsAre(50256));
  EXPECT_EQ(parse(with(gpt2_json, R"("n_inner": 100)")).mlp, 100);
  EXPECT_EQ(parse(with(gpt2_json, R"("n_inner": null)")).mlp, 3072);
  EXPECT_FALSE(parse(with(gpt2_json, R"("tie_word_embeddings": false)")).tied_head);
}

TEST(Config, ReadsLlamaOfBothVersions) {
  for (const std::string_view json : {llama_json, llama5_json}) {
    const TransformerConfig config = parse(json);
    EXPECT_EQ(config.style, Style::Llama);
    EXPECT_EQ(config.heads, 32);
    EXPECT_EQ(config.kv_heads, 8);
    EXPECT_EQ(config.head_size, 64);
    EXPECT_EQ(config.mlp, 8192);
    EXPECT_EQ(config.activation, Activation::Silu);
    EXPECT_FALSE(config.qkv_bias || config.out_bias || config.mlp_bias);
    EXPECT_EQ(config.rope.scaling, Scaling::Llama3);
    EXPECT_EQ(config.rope.theta, 500000);
    EXPECT_EQ(config.rope.factor, 32);
    EXPECT_EQ(config.rope.low_frequency_factor, 1);
    EXPECT_EQ(config.rope.high_frequency_factor, 4);
    EXPECT_EQ(config.rope.original_context, 8192);
    EXPECT_EQ(config.dropout.attention, 0);
    EXPECT_THAT(config.end_tokens, ElementsAre(128001, 128008, 128009));
    EXPECT_EQ(parameter_count(config), 1'235'814'400);
  }
}

TEST(Config, ReadsOtherFormsOfRotaryPositions) {
  const auto rope = [](const std::string& member) {
    return parse(with(with(llama_json, "rope_scaling", "other"), member)).rope;
  };
  EXPECT_EQ(rope(R"("rope_scaling": null)").scaling, Scaling::None);
  EXPECT_EQ(rope(R"("rope_scaling": {"type": "linear", "factor": 2})").scaling, Scaling::Linear);
  EXPECT_EQ(rope(R"("rope_scaling": {"type": "linear", "factor": 2})").factor, 2);
  EXPECT_EQ(rope(R"("rope_parameters": {"rope_type": "default", "rope_theta": 7})").theta, 7);
  EXPECT_EQ(rope(R"("rope_parameters": {"rope_type": "default"})").theta, 500000);
}

TEST(Config, ReadsQwen2AndMistral) {
  const std::string qwen = with(llama_json, R"("llama", "num)", R"("qwen2", "num)");
  EXPECT_TRUE(parse(qwen).qkv_bias);
  EXPECT_FALSE(parse(qwen).out_bias || parse(qwen).mlp_bias);
  EXPECT_EQ(parse(with(qwen, R"("sliding_window": 4096, "use_sliding_window": false)")).heads, 32);
  EXPECT_THAT(refusal(with(qwen, R"("sliding_window": 4096, "use_sliding_window": true)")),
              HasSubstr("sliding_window = 4096 is not supported"));
  const std::string mistral = with(llama_json, R"("llama", "num)", R"("mistral", "num)");
  EXPECT_FALSE(parse(with(mistral, R"("sliding_window": null)")).qkv_bias);
  EXPECT_EQ(parse(with(mistral, R"("sliding_window": 131072)")).context, 131072);
  EXPECT_THAT(refusal(with(mistral, R"("sliding_window": 4096)")), HasSubstr("131072"));
  // Without the key, transformers uses 4096.
  EXPECT_THAT(refusal(mistral), HasSubstr("sliding_window = 4096 (the default)"));
}

TEST(Config, ReadsBiases) {
  const auto all =
      parse(with(with(llama_json, R"("attention_bias": false)", R"("attention_bias": true)"),
                 R"("mlp_bias": false)", R"("mlp_bias": true)"));
  EXPECT_TRUE(all.qkv_bias && all.out_bias && all.mlp_bias);
}

TEST(Config, TakesTheTokensOfGenerationConfig) {
  const auto config = parse(gpt2_json, R"({"bos_token_id": 3, "eos_token_id": [4, 5]})");
  EXPECT_EQ(config.begin_token, 3);
  EXPECT_THAT(config.end_tokens, ElementsAre(4, 5));
  EXPECT_THAT(parse(gpt2_json, R"({"eos_token_id": null})").end_tokens, ElementsAre(50256));
  // Such tokens cannot occur.
  const auto small = parse(with(gpt2_json, R"("vocab_size": 50257)", R"("vocab_size": 48)"));
  EXPECT_EQ(small.begin_token, std::nullopt);
  EXPECT_TRUE(small.end_tokens.empty());
}

TEST(Config, RefusesWithAllFaultsAtOnce) {
  EXPECT_THAT(refusal(with(gpt2_json, R"("scale_attn_by_inverse_layer_idx": true)")),
              HasSubstr("scale_attn_by_inverse_layer_idx = true is not supported"));
  EXPECT_THAT(refusal(R"({"model_type": "gpt2", "vocab_size": 0, "n_embd": 10, "n_head": 4,
                          "activation_function": "mish", "scale_attn_weights": false})"),
              AllOf(HasSubstr("vocab_size = 0 is not a whole number from 1"),
                    HasSubstr("n_embd = 10 is not a multiple of n_head = 4"),
                    HasSubstr("activation_function = \"mish\" is not supported (gelu_new, "),
                    HasSubstr("scale_attn_weights = false"), HasSubstr("'n_layer' is missing"),
                    HasSubstr("config.json")));
  EXPECT_THAT(
      refusal(with(llama_json, R"("num_key_value_heads": 8)", R"("num_key_value_heads": 5)")),
      HasSubstr("num_attention_heads = 32 is not a multiple of num_key_value_heads = 5"));
  const std::string odd = with(llama_json, R"("hidden_size": 2048)", R"("hidden_size": 2050)");
  EXPECT_EQ(parse(odd).head_size, 64);
  EXPECT_THAT(
      refusal(with(odd, R"("head_dim": 64)", R"("head_dim": null)")),
      HasSubstr("hidden_size = 2050 is not a multiple of num_attention_heads = 32, and there "
                "is no head_dim"));
  EXPECT_THAT(refusal(with(llama_json, R"("llama3")", R"("yarn")")),
              HasSubstr("the rope_type \"yarn\" of rope_scaling is not supported"));
  EXPECT_THAT(refusal(with(llama_json, R"("rope_parameters": {"rope_type": "default"})")),
              HasSubstr("both rope_scaling and rope_parameters"));
  EXPECT_THAT(refusal(with(llama_json, R"("quantization_config": {"bits": 4})")),
              HasSubstr("quantised (quantization_config = {\"bits\":4})"));
  EXPECT_THAT(refusal(R"({"model_type": "lama"})"),
              AllOf(HasSubstr("the model_type \"lama\" is unknown; did you mean 'llama'?"),
                    HasSubstr("gpt2, llama, mistral, qwen2")));
  EXPECT_THAT(refusal("{}"), HasSubstr("no model_type"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("not a JSON object"));
}

TEST(Config, NamedModelsHaveTheirPublishedSizes) {
  const std::map<std::string, std::int64_t> parameters = {
      {"gpt2", 124'439'808},           {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},     {"gpt2-xl", 1'557'611'200},
      {"llama-3.2-1b", 1'235'814'400}, {"llama-3.2-3b", 3'212'749'824},
      {"llama-3.1-8b", 8'030'261'248}, {"smollm2-135m", 134'515'008}};
  const auto names = config_names();
  ASSERT_EQ(names.size(), parameters.size());
  for (const std::string& name : names)
    EXPECT_EQ(parameter_count(named_config(name)), parameters.at(name)) << name;
  EXPECT_THAT(message_of<UsageError>([] { named_config("gpt3"); }),
              HasSubstr("did you mean 'gpt2'"));
}

TEST(Config, WritesWhatItReads) {
  std::vector<TransformerConfig> all;
  for (const std::string& name : config_names()) all.push_back(named_config(name));
  all.push_back(parse(gpt2_json));
  all.push_back(parse(llama5_json));
  all.push_back(parse(with(llama_json, R"("llama", "num)", R"("qwen2", "num)")));
  all.push_back(parse(with(llama_json, R"("attention_bias": false)", R"("attention_bias": true)")));
  for (Activation activation : {Activation::Relu, Activation::Gelu, Activation::GeluTanh}) {
    all.push_back(all.front());
    all.back().activation = activation;
  }
  all.push_back(named_config("smollm2-135m"));
  all.back().rope.scaling = Scaling::Linear;
  all.back().rope.factor = 2.5;
  std::set<std::string> texts;
  for (const TransformerConfig& config : all) {
    const std::string json = to_config_json(config);
    texts.insert(json);
    const TransformerConfig back = parse(json);
    EXPECT_EQ(to_config_json(back), json);
    EXPECT_EQ(parameter_count(back), parameter_count(config));
    EXPECT_EQ(back.end_tokens, config.end_tokens);
    EXPECT_EQ(back.begin_token, config.begin_token);
    EXPECT_EQ(back.dropout.attention, config.dropout.attention);
  }
  EXPECT_EQ(texts.size(), all.size() - 1);  // all.front() has GeluTanh
}

TEST(Config, WritesNoModelThatTransformersLacks) {
  TransformerConfig config = named_config("gpt2");
  config.qkv_bias = false;
  EXPECT_THAT(message_of<UsageError>([&] { to_config_json(config); }), HasSubstr("bias"));
  config = named_config("smollm2-135m");
  config.out_bias = true;
  EXPECT_THROW(to_config_json(config), UsageError);
}

TEST(Config, ReadsAFolderOrItsFile) {
  const auto folder = std::filesystem::path(TRESTLE_BINARY_DIR) / "scratch/config_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_THAT(message_of<FileError>([&] { read_config(folder); }), HasSubstr("config.json"));
  std::ofstream(folder / "config.json") << llama_json;
  EXPECT_THAT(read_config(folder).end_tokens, ElementsAre(128001, 128008, 128009));
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": 7})";
  EXPECT_THAT(read_config(folder).end_tokens, ElementsAre(7));
  EXPECT_THAT(read_config(folder / "config.json").end_tokens, ElementsAre(7));
  std::filesystem::remove_all(folder);
}

TEST(FuzzConfig, DamageGivesAnErrorOrASoundConfig) {
  const auto result =
      fuzz::run({std::string(gpt2_json), std::string(llama_json), std::string(llama5_json)},
                [](std::string_view bytes) {
                  const TransformerConfig config = parse(bytes, R"({"eos_token_id": [1, 2]})");
                  ASSERT_GT(parameter_count(config), 0);
                  ASSERT_EQ(config.heads % config.kv_heads, 0);
                  ASSERT_GT(config.head_size, 0);
                  for (const std::int64_t token : config.end_tokens)
                    ASSERT_LT(token, config.vocabulary);
                },
                {.iterations = 4000});
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle::models
