#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trestle/checkpoint/weights.h"
#include "trestle/models/transformer/gguf_config.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/optim/fused.h"

// Models of Hugging Face's transformers give the same numbers here
// (tools/golden/make_transformer_goldens.py).
namespace trestle::models {
namespace {

namespace fs = std::filesystem;

const fs::path python_models = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/transformers";

using Tensors = std::map<std::string, at::Tensor>;

Tensors golden_of(const std::string& folder) {
  const auto file = checkpoint::read_weights(python_models / folder / "golden.safetensors");
  return {file.tensors.begin(), file.tensors.end()};
}

void load_public(const TransformerConfig& config, PublicNames names, const fs::path& path,
                 const nn::Layers& net) {
  checkpoint::load_weights(
      public_views(config, names, net.named_parameters()), path,
      {.rename = [&](const std::string& name) { return canonical_name(config, names, name); }});
}

double largest_gap(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// Compares tensors under our names with all the goldens "<prefix><name>".
void expect_equal(const TransformerConfig& config, const NamedTensors& ours, const Tensors& golden,
                  const std::string& prefix, double tolerance) {
  Tensors views;
  for (const auto& [name, view] : public_views(config, PublicNames::HuggingFace, ours))
    views[name] = view;
  std::size_t compared = 0;
  for (const auto& [name, tensor] : golden) {
    if (!name.starts_with(prefix)) continue;
    const std::string canonical =
        canonical_name(config, PublicNames::HuggingFace, name.substr(prefix.size()));
    ASSERT_TRUE(views.contains(canonical)) << name;
    EXPECT_LT(largest_gap(views.at(canonical), tensor), tolerance) << name;
    ++compared;
  }
  EXPECT_EQ(compared, views.size());
}

at::Tensor next_token_loss(const at::Tensor& scores, const at::Tensor& ids) {
  const at::Tensor before = scores.narrow(1, 0, scores.size(1) - 1);
  return torch::cross_entropy_loss(before.flatten(0, 1),
                                   ids.narrow(1, 1, ids.size(1) - 1).flatten());
}

class PythonModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = golden_of(GetParam());
    load_public(config_, PublicNames::HuggingFace, folder_, net_);
  }

  const fs::path folder_ = python_models / GetParam();
  const TransformerConfig config_ = read_config(folder_);
  nn::Layers net_ = transformer(config_);
  Tensors golden_;
};

TEST_P(PythonModel, HasItsParametersScoresAndLoss) {
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : net_.parameters()) parameters += parameter.numel();
  EXPECT_EQ(parameters, parameter_count(config_));
  const at::Tensor scores = net_.forward(golden_.at("ids"));
  EXPECT_LT(largest_gap(scores, golden_.at("logits")), 2e-5);
  EXPECT_LT(std::abs(next_token_loss(scores, golden_.at("ids")).item<double>() -
                     golden_.at("loss").item<double>()),
            1e-6);
}

TEST_P(PythonModel, HasItsScoresWithTheWrittenAttention) {
  nn::Layers written = transformer(config_, {.attention = AttentionCore::Written});
  load_public(config_, PublicNames::HuggingFace, folder_, written);
  EXPECT_LT(largest_gap(written.forward(golden_.at("ids")), golden_.at("logits")), 2e-5);
}

TEST_P(PythonModel, ContinuesWithItsTokens) {
  const torch::NoGradGuard no_grad;
  const at::Tensor expected = golden_.at("greedy");
  at::Tensor ids = golden_.at("ids").narrow(1, 0, 8);
  while (ids.size(1) < expected.size(1)) {
    const at::Tensor next = net_.forward(ids).select(1, -1).argmax(-1, true);
    ids = torch::cat({ids, next}, 1);
  }
  EXPECT_TRUE(torch::equal(ids, expected)) << ids << expected;
}

TEST_P(PythonModel, HasItsGradients) {
  next_token_loss(net_.forward(golden_.at("ids")), golden_.at("ids")).backward();
  NamedTensors gradients;
  for (const auto& [name, parameter] : net_.named_parameters())
    gradients.emplace_back(name, parameter.grad());
  expect_equal(config_, gradients, golden_, "grad.", 2e-6);
}

TEST_P(PythonModel, HasItsParametersAfterThreeSteps) {
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& parameter : net_.parameters())
    (parameter.dim() >= 2 ? matrices : others).push_back(parameter);
  const auto group = [](std::vector<at::Tensor> tensors, double decay) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(1e-3);
    options->betas({0.9, 0.95}).eps(1e-5).weight_decay(decay);
    return torch::optim::OptimizerParamGroup(std::move(tensors), std::move(options));
  };
  optim::FusedAdamW optimizer({group(matrices, 0.1), group(others, 0)},
                              torch::optim::AdamWOptions(1e-3));
  const at::Tensor ids = golden_.at("ids");
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    next_token_loss(net_.forward(ids), ids).backward();
    optimizer.step();
  }
  expect_equal(config_, net_.named_parameters(), golden_, "step3.", 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Golden, PythonModel,
                         testing::Values("gpt2", "gpt2_untied", "llama", "llama_tied",
                                         "llama_bias"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PythonWeights, ShardsAndAPickleHoldTheSameWeights) {
  const TransformerConfig config = read_config(python_models / "llama");
  nn::Layers whole = transformer(config);
  load_public(config, PublicNames::HuggingFace, python_models / "llama", whole);
  for (const char* folder : {"llama_sharded", "llama_bin"}) {
    EXPECT_EQ(parameter_count(read_config(python_models / folder)), parameter_count(config));
    nn::Layers net = transformer(config, {.seed = 7});
    load_public(config, PublicNames::HuggingFace, python_models / folder, net);
    const auto expected = whole.parameters(), loaded = net.parameters();
    ASSERT_EQ(expected.size(), loaded.size());
    for (std::size_t i = 0; i < loaded.size(); ++i)
      EXPECT_TRUE(torch::equal(loaded[i], expected[i])) << folder << " " << i;
  }
}

TEST(PythonWeights, AQuantisedFileGivesItsScores) {
  const fs::path path = python_models / "llama_gguf/model.gguf";
  const TransformerConfig config = read_gguf_config(path);
  EXPECT_EQ(config.rope.scaling, TransformerConfig::Rope::Scaling::Llama3);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.head_size, 8);
  EXPECT_THAT(config.end_tokens, testing::ElementsAre(1, 2));
  nn::Layers net = transformer(config);
  load_public(config, PublicNames::Gguf, path, net);
  rotary_rows_from_gguf(config, net.named_parameters());
  const Tensors golden = golden_of("llama_gguf");
  EXPECT_LT(largest_gap(net.forward(golden.at("ids")), golden.at("logits")), 2e-5);
}

}  // namespace
}  // namespace trestle::models
