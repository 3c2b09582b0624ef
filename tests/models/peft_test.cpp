#include "trestle/models/transformer/peft_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"

// Adapters of Python's PEFT give the same numbers here (tools/golden/make_peft_goldens.py).
namespace trestle::models {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

const fs::path goldens = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden";

LowRankOptions adapters_of_folder(const fs::path& folder) {
  return parse_peft_config(read_text_file(folder / "adapter_config.json"), folder.string());
}

class PeftAdapters : public testing::TestWithParam<const char*> {};

TEST_P(PeftAdapters, GivePythonsScoresAndGradients) {
  const fs::path base = goldens / "transformers" / GetParam(),
                 folder = goldens / "peft" / GetParam();
  const TransformerConfig config = read_config(base);
  const nn::Layers net = transformer(config, {.adapters = adapters_of_folder(folder)});
  checkpoint::load_weights(public_views(config, PublicNames::HuggingFace, net.named_parameters()),
                           base, {.rename = [&](const std::string& name) {
                             return canonical_name(config, PublicNames::HuggingFace, name);
                           }});
  const auto views = adapter_views(config, net.named_parameters());
  checkpoint::load_weights(views, folder / "adapter_model.safetensors",
                           {.rename = [](const std::string& name) { return name; }});
  std::map<std::string, at::Tensor> golden;
  for (const auto& [name, tensor] : checkpoint::read_weights(folder / "golden.safetensors").tensors)
    golden[name] = tensor;

  const at::Tensor ids = golden.at("ids"), scores = net.forward(ids);
  EXPECT_TRUE(torch::allclose(scores, golden.at("logits"), 1e-4, 1e-4));
  torch::cross_entropy_loss(scores.narrow(1, 0, ids.size(1) - 1).flatten(0, 1),
                            ids.narrow(1, 1, ids.size(1) - 1).flatten())
      .backward();
  NamedTensors gradients;
  for (const auto& [name, tensor] : adapters_of(net.named_parameters()))
    gradients.emplace_back(name, tensor.grad());
  std::size_t compared = 0;
  for (const auto& [name, gradient] : adapter_views(config, gradients)) {
    EXPECT_TRUE(torch::allclose(gradient, golden.at("grad." + name), 1e-4, 1e-5)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, golden.size() - 2);

  merge_adapters(net);
  EXPECT_TRUE(torch::allclose(net.forward(ids), golden.at("logits"), 1e-4, 1e-4));
}

TEST_P(PeftAdapters, HaveTheConfigThatIsWritten) {
  const LowRankOptions read = adapters_of_folder(goldens / "peft" / GetParam());
  const LowRankOptions again =
      parse_peft_config(to_peft_config(read, TransformerConfig::Style::Llama), "again");
  EXPECT_EQ(again.rank, read.rank);
  EXPECT_DOUBLE_EQ(again.alpha, read.alpha);
  EXPECT_EQ(again.targets, read.targets);
}

INSTANTIATE_TEST_SUITE_P(Python, PeftAdapters, testing::Values("gpt2", "llama"));

TEST(PeftConfig, ScalesRankStabilisedAdapters) {
  const LowRankOptions read = adapters_of_folder(goldens / "peft/llama");
  EXPECT_EQ(read.rank, 3);
  EXPECT_NEAR(read.alpha / 3, 6 / std::sqrt(3.0), 1e-12);
}

TEST(PeftConfig, RefusesWhatItCannotCompute) {
  const auto refused = [](const char* key, const nlohmann::json& value, const char* words) {
    nlohmann::json config = nlohmann::json::parse(
        R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})");
    EXPECT_EQ(parse_peft_config(config.dump(), "a.json").rank, 2);
    config[key] = value;
    try {
      parse_peft_config(config.dump(), "a.json");
      ADD_FAILURE() << key;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr("a.json"));
    }
  };
  refused("peft_type", "IA3", "peft_type = \"IA3\"");
  refused("use_dora", true, "\"use_dora\" = true is not supported");
  refused("rank_pattern", {{"q_proj", 4}}, "rank_pattern");
  refused("modules_to_save", {"lm_head"}, "modules_to_save");
  refused("bias", "all", "bias = \"all\"");
  refused("init_lora_weights", "pissa", "init_lora_weights = \"pissa\"");
  refused("target_modules", ".*attn.*", "target_modules = \".*attn.*\" is not a list");
  refused("r", 0, "r = 0");
  refused("r", -3, "r = -3");
  refused("lora_alpha", "x", "lora_alpha = \"x\"");
  refused("a_key_of_tomorrow", 3, "\"a_key_of_tomorrow\" = 3 is not supported");
}

}  // namespace
}  // namespace trestle::models
