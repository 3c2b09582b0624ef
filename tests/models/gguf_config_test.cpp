#include "trestle/models/transformer/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"
#include "trestle/checkpoint/files/gguf/gguf_header.h"
#include "trestle/models/transformer/read_config.h"

namespace trestle::models {
namespace {

using checkpoint::GgufHeader;
using support::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The metadata of SmolLM2-135M-Instruct.
GgufHeader smollm() {
  GgufHeader header;
  header.file = "model.gguf";
  header.metadata = {{"general.architecture", std::string("llama")},
                     {"llama.attention.head_count", std::int64_t{9}},
                     {"llama.attention.head_count_kv", std::int64_t{3}},
                     {"llama.attention.layer_norm_rms_epsilon", 1e-5},
                     {"llama.block_count", std::int64_t{30}},
                     {"llama.context_length", std::int64_t{8192}},
                     {"llama.embedding_length", std::int64_t{576}},
                     {"llama.feed_forward_length", std::int64_t{1536}},
                     {"llama.rope.dimension_count", std::int64_t{64}},
                     {"llama.rope.freq_base", 100000.0},
                     {"tokenizer.ggml.bos_token_id", std::int64_t{1}},
                     {"tokenizer.ggml.eos_token_id", std::int64_t{2}}};
  header.tensors = {{.name = "token_embd.weight", .shape = {49152, 576}},
                    {.name = "blk.0.attn_q.weight", .shape = {576, 576}}};
  return header;
}

GgufHeader with(GgufHeader header, const std::string& key, checkpoint::GgufValue value) {
  header.metadata[key] = std::move(value);
  return header;
}
GgufHeader with_tensor(GgufHeader header, const std::string& name) {
  header.tensors.push_back({.name = name, .shape = {32}});
  return header;
}

std::string refusal(const GgufHeader& header) {
  return message_of<FormatError>([&] { config_of_gguf(header); });
}

// As llama.cpp: "linear" is the default type, and older files have another key.
TEST(GgufConfig, ScalesRotaryPositionsWithoutATypeToo) {
  using Scaling = TransformerConfig::Rope::Scaling;
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const TransformerConfig config = config_of_gguf(with(smollm(), key, 4.0));
    EXPECT_EQ(config.rope.scaling, Scaling::Linear) << key;
    EXPECT_EQ(config.rope.factor, 4) << key;
    const GgufHeader none =
        with(with(smollm(), key, 4.0), "llama.rope.scaling.type", std::string("none"));
    EXPECT_EQ(config_of_gguf(none).rope.scaling, Scaling::None) << key;
  }
  EXPECT_EQ(config_of_gguf(with(smollm(), "llama.rope.scaling.factor", 1.0)).rope.scaling,
            Scaling::None);
}

TEST(GgufConfig, ReadsLlama) {
  const TransformerConfig config = config_of_gguf(smollm());
  TransformerConfig expected = named_config("smollm2-135m");
  EXPECT_EQ(parameter_count(config), parameter_count(expected));
  expected.initial_deviation = config.initial_deviation;  // a GGUF file has none
  expected.begin_token = 1;
  expected.end_tokens = {2};
  EXPECT_EQ(to_config_json(config), to_config_json(expected));
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(config_of_gguf(with_tensor(smollm(), "output.weight")).tied_head);
  EXPECT_TRUE(config_of_gguf(with_tensor(smollm(), "blk.0.attn_q.bias")).qkv_bias);
  EXPECT_TRUE(config_of_gguf(with_tensor(smollm(), "blk.0.attn_output.bias")).out_bias);
  EXPECT_TRUE(config_of_gguf(with_tensor(smollm(), "blk.0.ffn_down.bias")).mlp_bias);
  EXPECT_EQ(config_of_gguf(
                with(smollm(), "llama.attention.head_count_kv", std::vector<std::int64_t>(30, 3)))
                .kv_heads,
            3);
}

TEST(GgufConfig, ReadsEveryTokenThatEndsATurn) {
  GgufHeader header = with(smollm(), "tokenizer.ggml.eot_token_id", std::int64_t{7});
  EXPECT_THAT(config_of_gguf(header).end_tokens, ElementsAre(2, 7));
  header = with(header, "tokenizer.ggml.eom_token_id", std::int64_t{2});
  EXPECT_THAT(config_of_gguf(header).end_tokens, ElementsAre(2, 7));
  header = with(header, "tokenizer.ggml.bos_token_id", std::int64_t{49152});
  EXPECT_EQ(config_of_gguf(header).begin_token, std::nullopt);
}

TEST(GgufConfig, ReadsGpt2) {
  GgufHeader header;
  header.metadata = {{"general.architecture", std::string("gpt2")},
                     {"gpt2.attention.head_count", std::int64_t{12}},
                     {"gpt2.attention.layer_norm_epsilon", 1e-5},
                     {"gpt2.block_count", std::int64_t{12}},
                     {"gpt2.context_length", std::int64_t{1024}},
                     {"gpt2.embedding_length", std::int64_t{768}},
                     {"gpt2.feed_forward_length", std::int64_t{3072}},
                     {"tokenizer.ggml.bos_token_id", std::int64_t{50256}},
                     {"tokenizer.ggml.eos_token_id", std::int64_t{50256}}};
  header.tensors = {{.name = "token_embd.weight", .shape = {50257, 768}}};
  EXPECT_EQ(to_config_json(config_of_gguf(header)), to_config_json(named_config("gpt2")));
}

TEST(GgufConfig, MapsTheFactorsOfLlama3) {
  const TransformerConfig expected = named_config("llama-3.2-1b");
  GgufHeader header = with(smollm(), "llama.rope.freq_base", 500000.0);
  EXPECT_THAT(refusal(with_tensor(header, "rope_freqs.weight")),
              HasSubstr("its tensor rope_freqs.weight scales the rotary positions"));
  header = with_tensor(header, "rope_freqs.weight");
  // The frequencies without scaling over those of transformers for Llama 3.2 1B.
  std::vector<float> factors(15, 1.0F);
  for (const float between : {1.65133F, 3.29226F, 9.66673F}) factors.push_back(between);
  factors.resize(32, 32.0F);
  const TransformerConfig config = config_of_gguf(header, factors);
  EXPECT_EQ(config.rope.scaling, TransformerConfig::Rope::Scaling::Llama3);
  EXPECT_EQ(config.rope.factor, expected.rope.factor);
  EXPECT_EQ(config.rope.original_context, expected.rope.original_context);
  EXPECT_EQ(config.rope.low_frequency_factor, expected.rope.low_frequency_factor);
  EXPECT_EQ(config.rope.high_frequency_factor, expected.rope.high_frequency_factor);
  factors[16] = 2;
  EXPECT_THAT(message_of<FormatError>([&] { config_of_gguf(header, factors); }),
              HasSubstr("is not Llama 3's scaling"));
  factors.resize(31);
  EXPECT_THROW(config_of_gguf(header, factors), FormatError);
}

TEST(GgufConfig, RefusesWithAllFaultsAtOnce) {
  GgufHeader header = with(smollm(), "llama.attention.head_count_kv", std::int64_t{2});
  header = with(header, "llama.rope.scaling.type", std::string("yarn"));
  header = with(header, "llama.block_count", std::int64_t{0});
  header = with(header, "llama.rope.dimension_count", std::int64_t{32});
  header.metadata.erase("llama.context_length");
  EXPECT_THAT(refusal(header),
              AllOf(HasSubstr("9 heads are not a multiple of 2 key heads"),
                    HasSubstr("rope.scaling.type = 'yarn' is not supported"),
                    HasSubstr("llama.block_count = 0 is not a whole number from 1"),
                    HasSubstr("rotary positions of 32 of 64 rows"),
                    HasSubstr("the key llama.context_length is missing"), HasSubstr("model.gguf")));
  EXPECT_THAT(
      refusal(with(smollm(), "general.architecture", std::string("gemma3"))),
      AllOf(HasSubstr("the architecture 'gemma3' is not supported"), HasSubstr("llama and gpt2")));
  EXPECT_THAT(refusal(with_tensor(smollm(), "blk.0.ffn_gate_inp.weight")), HasSubstr("experts"));
  EXPECT_THAT(refusal(GgufHeader{}), HasSubstr("no general.architecture"));
  header = smollm();
  header.tensors.clear();
  EXPECT_THAT(refusal(header), HasSubstr("no tensor token_embd.weight"));
}

}  // namespace
}  // namespace trestle::models
