#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/language_training.h"
#include "trestle/train/language/text_model.h"

namespace trestle::train {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> recomputed() { return {"layers"}; }

TEST_F(LanguageTraining, MicroBatchesAndRecomputationGiveThePlainWeights) {
  expect_same_for("gpt2",
                  {{"four", 1, [](recipe::Recipe& r) { r.pipeline.micro_batches = 4; }},
                   {"one_each", 1, [](recipe::Recipe& r) { r.pipeline.micro_batches = 6; }},
                   {"blocks", 1, [](recipe::Recipe& r) { r.pipeline.checkpoint = recomputed(); }},
                   {"accumulated", 1, [](recipe::Recipe& r) {
                      r.train.batch = 3;
                      r.train.accumulate = 2;
                    }}});
}

TEST_F(LanguageTraining, PipelinesOnVirtualDevicesGiveThePlainWeights) {
  const auto cut = [](std::vector<std::int64_t> balance, const char* schedule) {
    return [=](recipe::Recipe& r) {
      r.devices.use = text("virtual:", balance.size());
      r.pipeline.balance = balance;
      r.pipeline.schedule = schedule;
      r.pipeline.micro_batches = 3;
    };
  };
  for (const char* model : {"gpt2", "llama"})
    expect_same_for(model, {{text(model, "_two_gpipe"), 1, cut({2, 3}, "gpipe")},
                            {text(model, "_three_1f1b"), 1, cut({1, 2, 2}, "1f1b")},
                            {text(model, "_recomputed"), 1, [&](recipe::Recipe& r) {
                               cut({2, 3}, "1f1b")(r);
                               r.pipeline.recompute = {"always"};
                             }}});
}

TEST_F(LanguageTraining, ReplicasAndShardsGiveThePlainWeights) {
  const auto mesh = [](std::int64_t replicate, std::int64_t shard, const char* level) {
    return [=](recipe::Recipe& r) {
      r.mesh.replicate = replicate;
      r.mesh.shard = shard;
      if (shard > 1) r.mesh.shard_level = level;
      r.pipeline.micro_batches = 2;
    };
  };
  for (const char* model : {"gpt2", "llama"})
    expect_same_for(model, {{text(model, "_ddp"), 2, mesh(2, 1, "")},
                            {text(model, "_zero1"), 2, mesh(1, 2, "optimizer_state")},
                            {text(model, "_zero2"), 3, mesh(1, 3, "gradients")},
                            {text(model, "_zero3"), 2, mesh(1, 2, "parameters")},
                            {text(model, "_hsdp"), 4, mesh(2, 2, "parameters")}});
}

// A mask is keyed by the example's number in the whole step.
TEST_F(LanguageTraining, DropoutDoesNotDependOnThePlan) {
  recipe::Recipe recipe = language_recipe("gpt2");
  recipe.transformer.dropout = 0.2;
  recipe.transformer.attention = "written";
  recipe.transformer.attention_dropout = 0.1;
  train(recipe);
  const auto expected = tensors(base_ / "runs" / recipe.name / "best.safetensors");
  const auto pipeline = [](recipe::Recipe& r) {
    r.pipeline.balance = {1, 2, 2};
    r.pipeline.schedule = "1f1b";
    r.pipeline.micro_batches = 3;
    r.pipeline.recompute = {"always"};
  };
  expect_weights_of_plans(
      expected, recipe,
      {{"four", 1, [](recipe::Recipe& r) { r.pipeline.micro_batches = 4; }},
       {"blocks", 1, [](recipe::Recipe& r) { r.pipeline.checkpoint = recomputed(); }},
       {"accumulated", 1,
        [](recipe::Recipe& r) {
          r.train.batch = 3;
          r.train.accumulate = 2;
        }},
       {"devices", 1,
        [&](recipe::Recipe& r) {
          pipeline(r);
          r.devices.use = "virtual:3";
        }},
       {"ddp", 4, [](recipe::Recipe& r) { r.mesh.replicate = 4; }},
       {"zero3", 2, [](recipe::Recipe& r) { r.mesh.shard = 2; }},
       {"accumulated_ddp", 2,
        [](recipe::Recipe& r) {
          r.train.batch = 3;
          r.train.accumulate = 2;
          r.mesh.replicate = 2;
        }},
       {"ranks", 6, [&](recipe::Recipe& r) {
          pipeline(r);
          r.mesh.pipeline = 3;
          r.mesh.replicate = 2;
        }}});
}

TEST_F(LanguageTraining, ResumesToTheToken) {
  recipe::Recipe recipe = language_recipe();
  const TrainResult whole = train(recipe, {});
  recipe.name += "_stopped";
  TrainHooks stopping = {};
  stopping.stop_after_steps = 2;
  const TrainResult stopped = train(recipe, stopping);
  EXPECT_FALSE(stopped.finished);
  resume(stopped.run_folder, {}, {});
  expect_same(whole.run_folder / "best.safetensors", stopped.run_folder / "best.safetensors");
}

TEST_F(LanguageTraining, LeavesAModelThatWritesText) {
  recipe::Recipe recipe = language_recipe("llama");
  const TrainResult done = train(recipe, {});
  EXPECT_EQ(done.metric_name, "log_probability");
  const TextModel model = open_text_model(done.run_folder);
  EXPECT_EQ(model.kind, "run");
  EXPECT_EQ(model.config.vocabulary, 256);
  ASSERT_NE(model.tokenizer, nullptr);
  EXPECT_EQ(model.tokenizer->encode("ab"), (std::vector<tokens::Id>{'a', 'b'}));
  const std::string sample = read_file(RunFolder{done.run_folder}.sample(1));
  EXPECT_GT(sample.size(), 4U);
}

// Adapters alone are trained, from weights in a file; their frozen weights keep every bit.
TEST_F(LanguageTraining, TrainsAdaptersBesideFrozenWeights) {
  recipe::Recipe recipe = language_recipe("llama");
  const TrainResult base = train(recipe, {});
  const auto before = tensors(base.run_folder / "best.safetensors");
  for (const char* type : {"fp32", "bf16"}) {
    recipe::Recipe tuned = language_recipe("llama");
    tuned.name += text("_tuned_", type);
    tuned.model.weights = (base.run_folder / "best.safetensors").string();
    tuned.adapters.rank = 2;
    tuned.adapters.frozen_type = type;
    tuned.optimizer.no_weight_decay = {};
    tuned.optimizer.learning_rate = 0.01;
    const TrainResult done = train(tuned, {});
    const auto after = tensors(done.run_folder / "best.safetensors");
    int adapters = 0;
    for (const auto& [name, tensor] : after) {
      if (before.contains(name)) {
        EXPECT_TRUE(at::equal(tensor, before.at(name).to(tensor.scalar_type()))) << name;
      } else {
        EXPECT_THAT(name, HasSubstr(".lora_"));
        EXPECT_GT(tensor.abs().max().item<double>(), 0) << name;
        ++adapters;
      }
    }
    EXPECT_EQ(adapters, 2 * 2 * 2);
  }
}

TEST_F(LanguageTraining, RefusesWhatDoesNotFit) {
  const auto refused = [](recipe::Recipe recipe, const char* words) {
    try {
      train(recipe, {});
      ADD_FAILURE() << "no error: " << words;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  };
  recipe::Recipe recipe = language_recipe();
  recipe.transformer.vocabulary = 100;
  refused(recipe, "the tokenizer of the text has 256 tokens, and the model 100");
  recipe = language_recipe();
  recipe.transformer.heads = 3;
  refused(recipe, "does not divide the width of 16");
  recipe = language_recipe();
  recipe.transformer.config = "gpt3";
  refused(recipe, "no model of that name");
  recipe = language_recipe();
  recipe.data.tokens = (base_ / "nowhere").string();
  refused(recipe, "nowhere");
  recipe = language_recipe();
  recipe.adapters.rank = 4;
  recipe.adapters.targets = {"q_projj"};
  refused(recipe, "no part of the model is named 'q_projj'");
}

}  // namespace
}  // namespace trestle::train
