// Well-known transformers: their parameters to the last one, their FLOPs and their bytes.
#include "trestle/plan/gpt/known_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/plan/gpt/gpt_block.h"
#include "trestle/plan/gpt/layer_times.h"
#include "trestle/plan/transformer_memory.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;

template <class Parse>
std::string refusal_of(const Parse& parse, const std::string& words) {
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

// The counts of the published checkpoints.
TEST(KnownModels, HaveThePublishedNumberOfParameters) {
  const std::pair<const char*, double> counts[] = {
      {"llama-2-7b", 6'738'415'616},   {"llama-2-13b", 13'015'864'320},
      {"llama-2-70b", 68'976'648'192}, {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496}, {"llama-3.1-405b", 405'853'388'800},
      {"llama-3.2-1b", 1'235'814'400}, {"llama-3.2-3b", 3'212'749'824},
      {"mistral-7b", 7'241'732'096}};
  for (const auto& [name, count] : counts)
    EXPECT_EQ(parameters_of(parse_known_model(name)), count) << name;
  // The formula of GPT leaves out the last norm: two vectors.
  const std::pair<const char*, double> gpts[] = {{"gpt2", 124'439'808},
                                                 {"gpt2-medium", 354'823'168},
                                                 {"gpt2-large", 774'030'080},
                                                 {"gpt2-xl", 1'557'611'200}};
  for (const auto& [name, count] : gpts) {
    const GptModel model = parse_known_model(name);
    EXPECT_NEAR(parameters_of(model) + 2.0 * static_cast<double>(model.hidden), count, 0.5) << name;
  }
}

TEST(KnownModels, AreFoundByNameAndTakeOtherSizes) {
  EXPECT_EQ(parse_known_model("llama-3-8b, sequence=4096").sequence, 4096);
  EXPECT_EQ(name_of(parse_known_model("gpt-3-175b")), "gpt-3-175b");
  EXPECT_EQ(name_of(parse_known_model("gpt2,sequence=512")), "");
  for (const KnownModel& known : known_models()) {
    EXPECT_EQ(parse_known_model(known.name), known.sizes);
    EXPECT_FALSE(known.from.empty());
  }
  EXPECT_THAT(refusal_of(parse_known_model, "lama-3-8b"), HasSubstr("did you mean 'llama-3-8b'"));
  EXPECT_THAT(refusal_of(parse_known_model, "llama-3-8b,sequence=0"),
              HasSubstr("--model sequence=0"));
  EXPECT_THAT(refusal_of(parse_known_model, "llama-3-8b,attention=written"),
              HasSubstr("unknown size of --model 'attention'"));
}

TEST(LlamaModels, AreReadFromTheirSizes) {
  EXPECT_EQ(parse_llama("layers=32,hidden=4096,heads=32,kv_heads=8,feed_forward=14336,"
                        "sequence=8192,vocabulary=128256"),
            parse_known_model("llama-3-8b"));
  EXPECT_THAT(refusal_of(parse_llama, "layers=2,hidden=8,heads=2,sequence=4,vocabulary=9"),
              HasSubstr("--llama has no feed_forward"));
  EXPECT_THAT(refusal_of(parse_llama,
                         "layers=2,hidden=8,heads=4,kv_heads=3,feed_forward=16,"
                         "sequence=4,vocabulary=9"),
              HasSubstr("3 heads of keys and values do not divide 4 heads"));
}

// Parameters times 6 for each token, without the embedding, and attention to all tokens.
TEST(LlamaModels, FlopsAreSixForEachParameterAndToken) {
  const GptModel model = parse_known_model("llama-3-8b");
  const double tokens = 4 * 8192, table = 128256.0 * 4096, norms = (2 * 32 + 1) * 4096;
  const double attention = 12.0 * 32 * 4096 * 8192 * tokens;
  EXPECT_NEAR(model_flops(model, 4),
              6 * tokens * (parameters_of(model) - table - norms) + attention, 1e3);
  // Wide MLPs and fewer keys agree with the formula of GPT if they are GPT's.
  GptModel gpt = parse_known_model("gpt2-xl");
  const double published = model_flops(gpt, 3);
  gpt.feed_forward = 4 * gpt.hidden + 1;
  EXPECT_NEAR(model_flops(gpt, 3) / published, 1, 1e-3);
  EXPECT_THAT(flops_formula(model), HasSubstr("no causal discount"));
}

// kept_by_block() has the bytes: of all rows, and of a block that tensor ranks split.
TEST(LlamaLedger, ActivationsAreThoseThatABlockKeeps) {
  const GptModel model = parse_known_model("llama-3-8b");
  const BlockSizes sizes{.style = BlockSizes::Style::Llama,
                         .batch = 1,
                         .tokens = 8192,
                         .width = 4096,
                         .heads = 32,
                         .kv_heads = 8,
                         .head_size = 128,
                         .mlp = 14336};
  for (const bool shards : {false, true}) {
    const double one =
        static_cast<double>(total_of(kept_by_block(sizes, {.tensor = 4, .sequence = shards})));
    EXPECT_EQ(activation_bytes(model, {.micro_batch = 3, .tensor = 4, .sequence_parallel = shards}),
              3 * one);
  }
  const PlannedGpt planned(model, vtrain::machine());
  const Ledger last = planned.ledgers({.pipeline = 2, .micro_batch = 1}, 4).back();
  EXPECT_NEAR(last.logits, 10.0 * 8192 * 128256, 1);  // 10.5 GB: the last stage's
}

// Flash attention stores no scores; all else is as with written attention, without dropout's masks.
TEST(FlashAttention, LeavesOutTheScores) {
  GptModel gpt = parse_known_model("gpt-3-175b");
  const LayerSplit split{.micro_batch = 1, .tensor = 8, .sequence_parallel = true};
  const double written = activation_bytes(gpt, split);
  const double scores = 5.0 * 96 * 2048 * 2048 / 8;
  const PassSeconds before = block_seconds(gpt, split, vtrain::machine());
  gpt.flash = true;
  EXPECT_NEAR(activation_bytes(gpt, split) / (written - scores), 1, 0.08);
  EXPECT_LT(block_seconds(gpt, split, vtrain::machine()).sum(), before.sum());
}

TEST(LlamaRules, HeadsOfKeysDivideOrAreMultiples) {
  const PlannedGpt planned(parse_known_model("llama-3-8b"), vtrain::machine());
  for (const int tensor : {1, 2, 4, 8})
    EXPECT_TRUE(planned.broken_rules({.tensor = tensor}).empty());
  const PlannedGpt six(parse_llama("layers=2,hidden=96,heads=24,kv_heads=6,feed_forward=16,"
                                   "sequence=4,vocabulary=9"),
                       vtrain::machine());
  EXPECT_EQ(six.broken_rules({.tensor = 4}).front().rule, "heads of keys");
}

TEST(LlamaParameters, SumOverStagesAndRanksIsTheModels) {
  const GptModel model = parse_known_model("llama-3-8b");
  const Machine machine = vtrain::machine();
  const auto sum = [&](const Strategy& strategy) {
    double all = 0;
    for (const double one :
         parameters_of_stages(model, strategy, layers_of_stages(model, strategy, machine)))
      all += one * strategy.tensor;
    return all;
  };
  EXPECT_EQ(sum({}), parameters_of(model));
  EXPECT_EQ(sum({.pipeline = 4}), parameters_of(model));
  // Norms are whole on each of the tensor ranks.
  EXPECT_EQ(sum({.tensor = 8}), parameters_of(model) + 7.0 * (2 * 32 + 1) * 4096);
}

// A share of messages that runs behind computation is not waited for.
TEST(HiddenMessages, ShortenAStep) {
  const GptModel model = parse_known_model("llama-3-8b");
  const Strategy strategy{.tensor = 2, .data = 4, .level = 3};
  vtrain::Predictor predict;
  Machine machine = vtrain::machine();
  const KnownStep step{.model = model, .strategy = strategy, .batch = 16};
  const double none = predict(machine, step);
  machine.hidden_tensor = {.value = 0.5, .from = "a test"};
  const double tensor = predict(machine, step);
  machine.hidden_data = {.value = 1, .from = "a test"};
  const double both = predict(machine, step);
  EXPECT_LT(tensor, none);
  EXPECT_LT(both, tensor);
}

}  // namespace
}  // namespace trestle::plan
