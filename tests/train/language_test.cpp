#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/train/language_training.h"
#include "trestle/generate/language_model.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/language/model_flops.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/layer_costs.h"

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

// The table is most of the weights. Each stage that uses it has it and its gradient; the first
// stage alone has the optimizer's state. So the predicted peaks of the stages are near the
// measured ones, in the run's own prediction, in a dry run, and for a balance.
TEST_F(LanguageTraining, PredictsPeaksWithTiedWeights) {
  constexpr std::int64_t table = 2048 * 64 * sizeof(float);
  for (const std::vector<std::int64_t>& balance :
       {std::vector<std::int64_t>{3, 2}, std::vector<std::int64_t>{2, 2, 1}}) {
    recipe::Recipe recipe = language_recipe();
    recipe.name += text(balance.size());
    recipe.transformer.vocabulary = 2048;
    recipe.model.width = 64;
    recipe.devices.use = text("virtual:", balance.size());
    recipe.pipeline.balance = balance;
    recipe.pipeline.micro_batches = 3;
    recipe.train.predict = true;
    const RunPlan plan = plan_on_paper(recipe, {});
    // The table once, positions, two blocks, the last norm.
    EXPECT_EQ(plan.parameters, 2048 * 64 + 16 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
    const TrainResult result = train(recipe, {});
    ASSERT_EQ(result.peaks.size(), balance.size());
    for (std::size_t stage = 0; stage < balance.size(); ++stage) {
      const auto measured = static_cast<double>(result.peaks[stage].measured);
      EXPECT_GT(measured, (stage == 0 ? 4 : stage + 1 == balance.size() ? 2 : 0) * table);
      for (const Bytes predicted :
           {result.peaks[stage].predicted, plan.stages.at(stage).predicted_peak}) {
        EXPECT_GE(static_cast<double>(predicted) / measured, 0.95) << "stage " << stage;
        EXPECT_LE(static_cast<double>(predicted) / measured, 1.3) << "stage " << stage;
      }
    }
  }
}

// A balance knows the copy of the table: a stage with the head alone has weight and gradient.
TEST_F(LanguageTraining, BalancesWithTiedWeights) {
  constexpr Bytes table = 512 * 16 * sizeof(float);
  recipe::Recipe recipe = language_recipe();
  recipe.transformer.vocabulary = 512;
  recipe.devices.use = "virtual:2";
  recipe.pipeline.balance = {};
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  LayerCosts costs = measure_layers(recipe, *silent, {});
  ASSERT_EQ(costs.profile.ties.size(), 1u);
  EXPECT_EQ(costs.profile.ties[0].owner, 0);
  EXPECT_EQ(costs.profile.ties[0].users, (std::vector<int>{4}));
  EXPECT_EQ(costs.profile.ties[0].bytes, table);
  EXPECT_EQ(costs.profile.layers[0].parameters, table + 16 * 16 * Bytes{sizeof(float)});
  EXPECT_EQ(costs.profile.layers[4].parameters, 0);
  for (auto& layer : costs.profile.layers) layer.inner = layer.transient = 0;
  for (auto& value : costs.profile.values) value.bytes = 0;
  costs.sizes.step_transients = {};
  EXPECT_EQ(plan::stage_bytes(costs.profile, 0, 1, costs.sizes), 4 * (table + 16 * 16 * 4));
  EXPECT_EQ(plan::stage_bytes(costs.profile, 4, 5, costs.sizes), 2 * table);
  // The same from a saved profile, and not from one of an untied head.
  const auto saved = plan::layer_profile_from_json(plan::to_json(costs.profile));
  EXPECT_EQ(costs_of_profile(recipe, saved, {}).profile.ties.size(), 1u);
  recipe.transformer.tied = "no";
  EXPECT_THROW(costs_of_profile(recipe, saved, {}), UsageError);
}

// 6 N + 12 L H Q T, with the published numbers of parameters.
TEST(ModelFlops, FollowPalmsFormula) {
  EXPECT_EQ(flops_per_token(models::named_config("gpt2"), 1024),
            6.0 * 124'439'808 + 12.0 * 12 * 12 * 64 * 1024);
  EXPECT_EQ(flops_per_token(models::named_config("smollm2-135m"), 2048),
            6.0 * 134'515'008 + 12.0 * 30 * 9 * 64 * 2048);
  recipe::Recipe recipe;
  recipe.model.name = "gpt2";
  recipe.transformer.config = "gpt2";
  EXPECT_EQ(flops_per_token(recipe), 0) << "other data than tokens";
  recipe.data.name = "tokens";
  EXPECT_EQ(flops_per_token(recipe), 859'885'056);
  recipe.transformer.context = 256;
  EXPECT_EQ(flops_per_token(recipe), 6.0 * (124'439'808 - 768 * 768) + 12.0 * 12 * 12 * 64 * 256);
  recipe.adapters.rank = 8;
  EXPECT_EQ(flops_per_token(recipe), 4.0 * (124'439'808 - 768 * 768) + 12.0 * 12 * 12 * 64 * 256);
  recipe.model.name = "unet";
  EXPECT_EQ(flops_per_token(recipe), 0);
}

TEST_F(LanguageTraining, ReportsModelFlopsOfAnEpoch) {
  recipe::Recipe recipe = language_recipe();
  recipe.train.peak_tflops = 0.001;
  const TrainResult done = train(recipe, {});
  nlohmann::json epoch;
  for (const std::string& line : split(read_file(done.run_folder / "metrics.jsonl"), '\n'))
    if (line.find("training_loss") != std::string::npos) epoch = nlohmann::json::parse(line);
  const double flops = epoch.at("tokens_per_second").get<double>() * flops_per_token(recipe);
  EXPECT_GT(flops, 0);
  EXPECT_DOUBLE_EQ(epoch.at("model_flops_per_second").get<double>(), flops);
  EXPECT_DOUBLE_EQ(epoch.at("mfu").get<double>(), flops / 1e9);
  EXPECT_DOUBLE_EQ(epoch.at("tokens_per_second").get<double>(),
                   16 * epoch.at("examples_per_second").get<double>());
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

TEST_F(LanguageTraining, ContextOfOneTokenHasNoSample) {
  recipe::Recipe recipe = language_recipe();
  recipe.transformer.context = 1;
  recipe.data.order = "windows";
  EXPECT_FALSE(fs::exists(RunFolder{train(recipe).run_folder}.sample(1)));
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

// The oracle is the plain model with the weights that the int8 numbers stand for. Five ids take the
// product of few vectors, twenty-five the matrices in fp32.
TEST_F(LanguageTraining, Int8ModelsGiveTheScoresOfTheirRoundedWeights) {
  for (const char* style : {"gpt2", "llama"}) {
    recipe::Recipe recipe = language_recipe(style);
    recipe.name += "_int8";
    recipe.transformer.tied = "yes";
    recipe.transformer.context = 32;
    const fs::path run = train(recipe, {}).run_folder;
    const TextModel whole = open_text_model(run);
    models::TransformerConfig config = whole.config;
    ASSERT_TRUE(config.tied_head);
    config.tied_head = false;  // the rounded head is not the table
    nn::Layers plain = models::transformer(config);
    {
      const torch::NoGradGuard no_grad;
      std::map<std::string, at::Tensor> trained;
      for (const auto& [name, tensor] : whole.layers.named_parameters()) trained[name] = tensor;
      const auto rounded = [](const at::Tensor& matrix) {
        const at::Tensor scale = matrix.abs().amax(1, true) / 127;
        return (matrix / scale).round() * scale;
      };
      for (const auto& [name, tensor] : plain.named_parameters()) {
        const bool head = name == "head.weight", table = name.starts_with("embed.");
        at::Tensor value = trained.at(head ? "embed.tokens" : name);
        if (head || table) value = value.to(at::kBFloat16).to(at::kFloat);
        const bool block = name.starts_with("blocks.") && value.dim() == 2;
        tensor.copy_(head || block ? rounded(value) : value);
      }
    }
    const TextModel int8 = open_text_model(run, {.type = at::kChar});
    generate::LanguageModel writer(int8.layers, int8.config);
    std::vector<std::int64_t> ids;
    for (int i = 0; i < 25; ++i) ids.push_back('a' + (i * 7) % 26);
    const torch::NoGradGuard no_grad;
    for (const std::size_t count : {5U, 25U}) {
      const std::vector<std::int64_t> begin(ids.begin(), ids.begin() + count);
      const at::Tensor wanted = plain.forward(torch::tensor(begin).unsqueeze(0)).squeeze(0);
      const double size = wanted.abs().max().item<double>();
      EXPECT_LT((writer.all_scores(begin) - wanted).abs().max().item<double>(), 2e-4 * size)
          << style << " " << count;
      EXPECT_GT((whole.layers.forward(torch::tensor(begin).unsqueeze(0)) - wanted)
                    .abs()
                    .max()
                    .item<double>(),
                1e-3 * size)
          << "rounding to int8 must be visible here";
    }
  }
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
  refused(recipe,
          "'adapter_targets' in [adapters]: no part of a gpt2 is named 'q_projj'; did you mean "
          "'c_proj'?");
}

}  // namespace
}  // namespace trestle::train
