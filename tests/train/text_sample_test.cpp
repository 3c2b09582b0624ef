// The sample of text after each epoch, over ranks.
#include <gmock/gmock.h>

#include <set>

#include "tests/support/message_of.h"
#include "tests/train/language_training.h"
#include "trestle/generate/generate.h"
#include "trestle/tokens/stream_decoder.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/run_folder/run_folder.h"

namespace trestle::train {
namespace {

using support::message_of;
using ::testing::HasSubstr;

class TextSamples : public LanguageTraining {
 protected:
  // Steps so large that copies of weights from before the last one write another text. SGD, which
  // does not enlarge the rounding of small gradients as AdamW does.
  static recipe::Recipe sampling_recipe(const std::string& model) {
    recipe::Recipe recipe = language_recipe(model);
    recipe.name += "_" + model;
    recipe.transformer.context = 48;
    recipe.data.row_tokens = 16;
    recipe.optimizer = {};
    recipe.optimizer.name = "sgd";
    recipe.optimizer.learning_rate = 0.5;
    recipe.optimizer.momentum = 0.9;
    return recipe;
  }
  static std::string sample_of(const TrainResult& done) {
    return read_file(RunFolder{done.run_folder}.sample(1));
  }

  static void expect_text_of_one_process(const std::string& model) {
    const recipe::Recipe one = sampling_recipe(model);
    const std::string expected = sample_of(train(one));
    EXPECT_GE(expected.size(), 45U);
    EXPECT_GE(std::set<char>(expected.begin(), expected.end()).size(), 8U) << expected;
    const auto pipeline = [](recipe::Recipe& r) {
      r.pipeline.balance = {2, 3};
      r.mesh.pipeline = 2;
    };
    const auto shard = [](std::int64_t replicate, std::int64_t ranks, const char* level) {
      return [=](recipe::Recipe& r) {
        r.mesh.replicate = replicate;
        r.mesh.shard = ranks;
        r.mesh.shard_level = level;
      };
    };
    const std::vector<Plan> plans = {{"ddp", 2, [](recipe::Recipe& r) { r.mesh.replicate = 2; }},
                                     {"zero1", 2, shard(1, 2, "optimizer_state")},
                                     {"zero2", 4, shard(1, 4, "gradients")},
                                     {"zero3", 4, shard(1, 4, "parameters")},
                                     {"whole_units", 2,
                                      [](recipe::Recipe& r) {
                                        r.mesh.shard = 2;
                                        r.mesh.units = {"stage"};
                                      }},
                                     {"hsdp", 4, shard(2, 2, "parameters")},
                                     {"pipeline", 2, pipeline},
                                     {"pipeline_zero3", 4, [&](recipe::Recipe& r) {
                                        pipeline(r);
                                        shard(1, 2, "parameters")(r);
                                      }}};
    for (const Plan& plan : plans) {
      SCOPED_TRACE(plan.name);
      recipe::Recipe other = one;
      other.name += "_" + plan.name;
      plan.set(other);
      EXPECT_EQ(sample_of(on_ranks(plan.ranks, other, {})), expected);
    }
  }
};

TEST_F(TextSamples, Gpt2WritesTheTextOfOneProcessOverRanks) { expect_text_of_one_process("gpt2"); }
TEST_F(TextSamples, LlamaWritesTheTextOfOneProcessOverRanks) {
  expect_text_of_one_process("llama");
}

// The same by `trestle generate`: the same choice, without a pipeline.
TEST_F(TextSamples, ContinuesTheValidationTextAsGenerateDoes) {
  recipe::Recipe recipe = sampling_recipe("llama");
  recipe.pipeline.balance = {2, 3};
  recipe.devices.use = "virtual:2";
  const TrainResult done = train(recipe);
  const TextModel model = open_text_model(done.run_folder, {.checkpoint = Checkpoint::Last});
  std::vector<std::int64_t> prompt(12);
  tokens::TokenSet(base_ / "text", "validation").read(0, prompt, 256);
  const generate::Generated made =
      generate::generate(generate::LanguageModel(model.layers, model.config), prompt,
                         {.choice = {.temperature = 0.8, .seed = 42}, .most_tokens = 36});
  std::vector<tokens::Id> all(prompt.begin(), prompt.end());
  all.insert(all.end(), made.ids.begin(), made.ids.end());
  tokens::StreamDecoder decoder(*model.tokenizer);
  std::string words;
  for (const tokens::Id id : all) words += decoder.add(id);
  EXPECT_EQ(sample_of(done), words + decoder.finish() + "\n");
}

TEST_F(TextSamples, HaveTheLengthOfTheRecipe) {
  recipe::Recipe recipe = sampling_recipe("gpt2");
  recipe.train.sample_tokens = 0;
  EXPECT_FALSE(fs::exists(RunFolder{train(recipe).run_folder}.sample(1)));
  recipe.name += "_short";
  recipe.train.sample_tokens = 3;
  recipe.mesh.replicate = 2;
  const std::string shown = sample_of(on_ranks(2, recipe, {}));
  EXPECT_GT(shown.size(), 12U);
  EXPECT_LE(shown.size(), 12U + 3 * 3 + 1) << "a byte that is no character is written as three";
}

// The last update makes the weights infinite, and no validation finds them before the sample.
TEST_F(TextSamples, AnErrorOnTheRankThatChoosesEndsAllRanks) {
  std::ofstream(base_ / "all.txt") << std::string(400, 'a');
  tokens::prepare({(base_ / "all.txt").string()}, *tokens::bytes_tokenizer(),
                  {.out = base_ / "all", .save_tokenizer = [](const fs::path& to) {
                     tokens::copy_tokenizer("bytes", to);
                   }});
  for (const bool sharded : {false, true}) {
    recipe::Recipe recipe = sampling_recipe("llama");
    recipe.name += sharded ? "_sharded" : "_pipeline";
    recipe.data.tokens = (base_ / "all").string();
    recipe.data.order = "windows";
    recipe.train.max_steps = 1;
    recipe.optimizer.learning_rate = 1e38;
    if (sharded) {
      recipe.mesh.shard = 2;
    } else {
      recipe.pipeline.balance = {2, 3};
      recipe.mesh.pipeline = 2;
    }
    EXPECT_THAT(message_of([&] { on_ranks(2, recipe, {}); }),
                HasSubstr("the score of token 0 is "));
  }
}

}  // namespace
}  // namespace trestle::train
