#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/train/training.h"
#include "trestle/data/loader.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/tokens/files/prepare.h"
#include "trestle/tokens/files/token_rows.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/language/model_flops.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/layer_costs.h"

namespace trestle::train {
namespace {

using ::testing::HasSubstr;

// Language models on documents of 2 to 41 bytes, packed into rows of 16: the rows of a batch have
// different numbers of targets, and one of them hardly any.
class LanguageTraining : public Training {
 protected:
  static void SetUpTestSuite() {
    Training::SetUpTestSuite();
    install_virtual_devices({.count = 3});  // before the first backward of this process
    std::ofstream lines(base_ / "documents.jsonl");
    for (int i = 0; i < 40; ++i)
      lines << R"({"text": ")"
            << std::string(static_cast<std::size_t>(1 + (i * 7) % 41),
                           static_cast<char>('a' + i % 26))
            << "b\"}\n";
    lines.close();
    tokens::prepare(
        {(base_ / "documents.jsonl").string()}, *tokens::bytes_tokenizer(),
        {.out = base_ / "text", .validation = 0.2, .save_tokenizer = [](const fs::path& to) {
           tokens::copy_tokenizer("bytes", to);
         }});
  }

  static recipe::Recipe language_recipe(const std::string& model = "gpt2") {
    recipe::Recipe recipe = Training::recipe();
    recipe.model.name = model;
    recipe.model.width = 16;
    recipe.transformer.layers = 2;
    recipe.transformer.heads = 4;
    if (model == "llama") recipe.transformer.kv_heads = 2;
    recipe.transformer.context = 16;
    recipe.data = {};
    recipe.data.name = "tokens";
    recipe.data.tokens = (base_ / "text").string();
    recipe.data.order = "documents";
    recipe.devices.use = "cpu";
    recipe.devices.threads = 1;
    recipe.pipeline.balance = {5};
    recipe.pipeline.micro_batches = 1;
    recipe.pipeline.recompute = {"never"};
    recipe.optimizer = {};
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 1e-3;
    recipe.optimizer.epsilon = 1e-5;
    recipe.optimizer.weight_decay = 0.1;
    recipe.optimizer.no_weight_decay = {"one_dimensional"};
    recipe.optimizer.clip_grad_norm = 1;
    recipe.train.batch = 6;
    recipe.train.epochs = 1;
    recipe.train.max_steps = 5;
    recipe.train.drop_last = true;
    recipe.train.predict = false;
    return recipe;
  }

  static TrainHooks language_hooks() {
    TrainHooks own;
    return own;
  }

  // The same steps in plain libtorch: whole batches, torch's loss and optimizer.
  static std::map<std::string, at::Tensor> plain_weights(const recipe::Recipe& recipe) {
    const auto config = models::read_config(base_ / "runs" / recipe.name / "config.json");
    nn::Layers net = models::transformer(config, {.seed = 42});
    std::vector<at::Tensor> decayed, others;
    for (const auto& [name, tensor] : net.named_parameters())
      (tensor.dim() > 1 ? decayed : others).push_back(tensor);
    const auto options = [&](double decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(1e-3).eps(1e-5).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(decayed, options(0.1));
    groups.emplace_back(others, options(0));
    torch::optim::AdamW optimizer(groups);
    const tokens::TokenRows rows(
        std::make_shared<tokens::TokenSet>(base_ / "text", "train"),
        {.order = tokens::RowOrder::Documents, .context = 16, .vocabulary = 256, .seed = 42});
    for (const auto& numbers : shuffled_batches(rows.count(), 6, 5)) {
      at::Tensor ids = torch::empty({6, 16, 2}, torch::kLong),
                 targets = torch::empty({6, 16}, torch::kLong);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::vector<std::int64_t> a(16), b(16), c(16);
        rows.read(numbers[i], 0, {.ids = a, .targets = b, .places = c});
        const auto row = static_cast<std::int64_t>(i);
        ids[row].select(1, 0).copy_(torch::tensor(a));
        ids[row].select(1, 1).copy_(torch::tensor(c));
        targets[row].copy_(torch::tensor(b));
      }
      optimizer.zero_grad();
      const at::Tensor scores = net.forward(ids);
      torch::nn::functional::cross_entropy(scores.flatten(0, 1), targets.flatten()).backward();
      torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
      optimizer.step();
    }
    const auto named = net.named_parameters();
    return {named.begin(), named.end()};
  }

  // The order of the loader, from a loader over the numbers themselves.
  static std::vector<std::vector<std::int64_t>> shuffled_batches(std::int64_t count,
                                                                 std::int64_t batch,
                                                                 std::int64_t most) {
    struct Numbers : data::Dataset {
      std::int64_t count = 0;
      std::int64_t size() const override { return count; }
      data::Sample get(std::int64_t index) const override {
        return {torch::tensor({index}), torch::tensor({index}), text(index)};
      }
    };
    auto numbers = std::make_shared<Numbers>();
    numbers->count = count;
    data::Loader loader(numbers, {.batch = batch,
                                  .order = data::Order::Shuffled,
                                  .last_batch = data::LastBatch::Drop,
                                  .seed = 42});
    std::vector<std::vector<std::int64_t>> all;
    for (data::Batch& one : loader.epoch(0)) {
      std::vector<std::int64_t> row;
      for (std::int64_t i = 0; i < one.inputs.size(0); ++i)
        row.push_back(one.inputs[i].item<std::int64_t>());
      all.push_back(row);
      if (std::ssize(all) == most) break;
    }
    return all;
  }

  static void expect_weights(const std::map<std::string, at::Tensor>& expected,
                             const fs::path& run) {
    const auto actual = tensors(run / "best.safetensors");
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::allclose(tensor, actual.at(name), 1e-4, 2e-6))
          << name << " differs by " << (tensor - actual.at(name)).abs().max().item<double>();
  }

  // Trains under several plans; each gives the weights of the plain loop.
  struct Plan {
    std::string name;
    int ranks = 1;
    std::function<void(recipe::Recipe&)> set;
  };
  static void expect_same_for(const std::string& model, const std::vector<Plan>& plans) {
    recipe::Recipe first = language_recipe(model);
    first.name += "_" + model;
    train(first, language_hooks());
    const auto expected = plain_weights(first);
    expect_weights(expected, base_ / "runs" / first.name);
    for (const Plan& plan : plans) {
      SCOPED_TRACE(plan.name);
      recipe::Recipe other = language_recipe(model);
      other.name += "_" + plan.name;
      plan.set(other);
      if (plan.ranks == 1)
        train(other, language_hooks());
      else
        on_ranks(plan.ranks, other, language_hooks());
      expect_weights(expected, base_ / "runs" / other.name);
    }
  }
};

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

TEST_F(LanguageTraining, PipelinesOfLlamaGiveThePlainWeights) {
  const auto cut = [](std::vector<std::int64_t> balance, const char* schedule) {
    return [=](recipe::Recipe& r) {
      r.devices.use = text("virtual:", balance.size());
      r.pipeline.balance = balance;
      r.pipeline.schedule = schedule;
      r.pipeline.micro_batches = 3;
    };
  };
  expect_same_for("llama", {{"two_gpipe", 1, cut({2, 3}, "gpipe")},
                            {"three_1f1b", 1, cut({1, 2, 2}, "1f1b")},
                            {"recomputed", 1, [&](recipe::Recipe& r) {
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
    const RunPlan plan = plan_on_paper(recipe, language_hooks());
    // The table once, positions, two blocks, the last norm.
    EXPECT_EQ(plan.parameters, 2048 * 64 + 16 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
    const TrainResult result = train(recipe, language_hooks());
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
  const TrainResult done = train(recipe, language_hooks());
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
  const TrainResult whole = train(recipe, language_hooks());
  recipe.name += "_stopped";
  TrainHooks stopping = language_hooks();
  stopping.stop_after_steps = 2;
  const TrainResult stopped = train(recipe, stopping);
  EXPECT_FALSE(stopped.finished);
  resume(stopped.run_folder, {}, language_hooks());
  expect_same(whole.run_folder / "best.safetensors", stopped.run_folder / "best.safetensors");
}

TEST_F(LanguageTraining, LeavesAModelThatWritesText) {
  recipe::Recipe recipe = language_recipe("llama");
  const TrainResult done = train(recipe, language_hooks());
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
  const TrainResult base = train(recipe, language_hooks());
  const auto before = tensors(base.run_folder / "best.safetensors");
  for (const char* type : {"fp32", "bf16"}) {
    recipe::Recipe tuned = language_recipe("llama");
    tuned.name += text("_tuned_", type);
    tuned.model.weights = (base.run_folder / "best.safetensors").string();
    tuned.adapters.rank = 2;
    tuned.adapters.frozen_type = type;
    tuned.optimizer.no_weight_decay = {};
    tuned.optimizer.learning_rate = 0.01;
    const TrainResult done = train(tuned, language_hooks());
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
      train(recipe, language_hooks());
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
