#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"
#include "tests/train/language_training.h"
#include "trestle/generate/generate.h"
#include "trestle/tokens/add_tokens.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/train_bpe.h"
#include "trestle/train/language/export_model.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/predict/evaluator.h"

// Rows of the vocabulary: padded ones, and those of new tokens.
namespace trestle::train {
namespace {

using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The tokens are the 256 bytes; the tables have 300 rows.
class PaddedVocabulary : public LanguageTraining {
 protected:
  static recipe::Recipe padded_recipe(const std::string& model) {
    recipe::Recipe recipe = language_recipe(model);
    recipe.transformer.vocabulary_multiple = 100;
    return recipe;
  }

  // The rows of every tensor in a checkpoint that has at least a table's rows, and their number.
  static void expect_rows(const fs::path& checkpoint, std::size_t tensors) {
    const auto index = nlohmann::json::parse(read_file(checkpoint / "index.json"));
    std::size_t found = 0;
    for (const auto& [group, all] : index.at("tensors").items())
      for (const auto& tensor : all) {
        const std::string name = tensor.at("name").get<std::string>();
        const auto shape = tensor.at("shape").get<std::vector<std::int64_t>>();
        if (!(name.starts_with("embed.tokens") || name.starts_with("head.weight")) || shape.empty())
          continue;
        EXPECT_EQ(shape, (std::vector<std::int64_t>{256, 16})) << name;
        ++found;
      }
    EXPECT_EQ(found, tensors);
  }
};

// best.safetensors has the 256 rows of the plain model in each of them.
TEST_F(PaddedVocabulary, GivesThePlainWeightsUnderEveryPlan) {
  for (const char* model : {"gpt2", "llama"}) {
    recipe::Recipe first = padded_recipe(model);
    first.name += text("_", model);
    train(first);
    const auto expected = plain_weights(first);
    const fs::path run = base_ / "runs" / first.name;
    expect_weights(expected, run);
    expect_rows(run / "last", model == std::string_view("gpt2") ? 3 : 6);
    expect_weights_of_plans(
        expected, first,
        {{"stages", 1,
          [](recipe::Recipe& r) {
            r.devices.use = "virtual:3";
            r.pipeline.balance = {1, 2, 2};
            r.pipeline.schedule = "1f1b";
            r.pipeline.micro_batches = 3;
          }},
         {"recomputed", 1, [](recipe::Recipe& r) { r.pipeline.recompute = {"always"}; }},
         {"ddp", 2, mesh(2, 1, "")},
         {"zero1", 2, mesh(1, 2, "optimizer_state")},
         {"zero2", 3, mesh(1, 3, "gradients")},
         {"zero3", 2, mesh(1, 2, "parameters")},
         {"stages_zero3", 4, [](recipe::Recipe& r) {
            r.pipeline.balance = {2, 3};
            r.mesh.pipeline = 2;
            r.mesh.shard = 2;
            r.mesh.shard_level = "parameters";
            r.pipeline.micro_batches = 2;
          }}});
  }
}

TEST_F(PaddedVocabulary, GivesThePlainWeightsInBf16) {
  recipe::Recipe recipe = padded_recipe("gpt2");
  in_bf16(recipe);
  train(recipe);
  const auto expected = plain_weights(recipe);
  const auto actual = tensors(base_ / "runs" / recipe.name / "best.safetensors");
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(tensor.sizes(), actual.at(name).sizes()) << name;
    EXPECT_LT((tensor - actual.at(name)).norm().item<double>(),
              0.01 * tensor.norm().item<double>() + 1e-4)
        << name;
  }
}

// After three batches of two a step, so that gradients are saved too. Three shards of 512 rows read
// what two shards of 300 rows wrote.
TEST_F(PaddedVocabulary, ResumesWithAnotherPaddingAndOtherRanks) {
  struct Way {
    const char* name;
    std::int64_t shard, shard_after;
    const char* multiple;
  };
  for (const char* model : {"gpt2", "llama"}) {
    recipe::Recipe recipe = padded_recipe(model);
    recipe.train.accumulate = 2;
    recipe.train.max_steps = 2;
    recipe.name += text("_", model);
    const TrainResult whole = train(recipe, {});
    const auto expected = tensors(whole.run_folder / "best.safetensors");
    for (const Way& way :
         {Way{"same", 1, 1, "100"}, Way{"none", 1, 1, "1"}, Way{"more", 1, 1, "512"},
          Way{"sharded", 2, 3, "512"}, Way{"gathered", 3, 1, "64"}}) {
      SCOPED_TRACE(way.name);
      recipe::Recipe other = recipe;
      other.name += text("_", way.name);
      other.mesh.shard = way.shard;
      TrainHooks stopping;
      stopping.should_stop = [batches = 0]() mutable { return ++batches == 3; };
      const fs::path run = (way.shard > 1 ? on_ranks(static_cast<int>(way.shard), other, stopping)
                                          : train(other, stopping))
                               .run_folder;
      expect_rows(run / "last", model == std::string_view("gpt2") ? 4 : 8);
      const Changes changes = {{"transformer.vocabulary_multiple", way.multiple},
                               {"mesh.shard", text(way.shard_after)}};
      if (way.shard_after > 1)
        on_ranks(static_cast<int>(way.shard_after), other, {}, run, changes);
      else
        resume(run, changes, {});
      expect_weights(expected, run);
    }
  }
}

TEST_F(PaddedVocabulary, RunIsReadWithoutPadding) {
  recipe::Recipe recipe = padded_recipe("gpt2");
  const fs::path run = train(recipe, {}).run_folder;
  for (const Checkpoint which : {Checkpoint::Best, Checkpoint::Last}) {
    const TextModel model = open_text_model(run, {.checkpoint = which});
    EXPECT_EQ(model.config.vocabulary, 256);
    const generate::LanguageModel writer(model.layers, model.config);
    const auto made = generate::generate(writer, {'a', 'b'}, {.most_tokens = 5});
    EXPECT_EQ(made.ids.size(), 5U);
  }
  EXPECT_GT(evaluate({.run = run}).examples, 0);
  const ExportedModel made = export_text_model(open_text_model(run), base_ / "padded_export");
  std::int64_t numbers = 0;
  for (const auto& [name, tensor] : tensors(run / "best.safetensors")) numbers += tensor.numel();
  EXPECT_EQ(made.numbers, numbers);
  // A training fills the rows of new tokens. A model that only writes has a wrong config.
  const fs::path config = base_ / "padded_export/config.json";
  auto wrong = nlohmann::json::parse(read_file(config));
  wrong["vocab_size"] = 260;
  write_file(config, wrong.dump());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kChar})
    EXPECT_THAT(message_of([&] { open_text_model(base_ / "padded_export", {.type = type}); }),
                AllOf(HasSubstr("[256, 16]"), HasSubstr("[260, 16]")))
        << type;
  recipe::Recipe next = padded_recipe("gpt2");  // a run from its weights
  next.name += "_next";
  next.model.weights = (run / "best.safetensors").string();
  EXPECT_TRUE(train(next, {}).finished);
  next.train.deepspeed_checkpoints = true;
  EXPECT_THAT(message_of([&] { train(next, {}); }), HasSubstr("vocabulary_multiple"));
}

// A tokenizer of byte-level BPE, and the same one with two tokens more.
class GrownVocabulary : public LanguageTraining {
 protected:
  static void SetUpTestSuite() {
    LanguageTraining::SetUpTestSuite();
    std::ofstream lines(base_ / "calls.jsonl");
    for (int i = 0; i < 40; ++i)
      lines << R"({"text": "call <|tool|> )" << i << R"( and <|end|>"})"
            << "\n";
    lines.close();
    const std::vector<std::string_view> texts = {"call and call", "and call 1 2 3"};
    tokens::save_tokenizer_json(tokens::train_bpe(texts, {.vocabulary_size = 270}),
                                base_ / "tokenizer.json");
    const auto plain = tokens::open_tokenizer(base_ / "tokenizer.json");
    prepare("plain", *plain,
            [](const fs::path& to) { tokens::copy_tokenizer(base_ / "tokenizer.json", to); });
    const std::shared_ptr<tokens::Tokenizer> larger = tokens::add_tokens(
        *plain, {{.spelling = "<|tool|>"}, {.spelling = "<|end|>", .special = true}});
    prepare("larger", *larger,
            [larger](const fs::path& to) { tokens::save_added_tokens(*larger, to); });
    size_ = plain->size();
  }

  static void prepare(const char* name, const tokens::Tokenizer& tokenizer,
                      std::function<void(const fs::path&)> save) {
    tokens::prepare({(base_ / "calls.jsonl").string()}, tokenizer,
                    {.out = base_ / name, .validation = 0.2, .save_tokenizer = std::move(save)});
  }

  static recipe::Recipe calls_recipe(const std::string& model, const char* data) {
    recipe::Recipe recipe = language_recipe(model);
    recipe.name += "_" + model;
    recipe.data.tokens = (base_ / data).string();
    recipe.data.order = "windows";
    return recipe;
  }

  // A run with the tokenizer's own vocabulary.
  static fs::path base_weights(const std::string& model) {
    const fs::path file = base_ / "runs" / ("base_" + model) / "best.safetensors";
    if (fs::exists(file)) return file;
    recipe::Recipe recipe = calls_recipe(model, "plain");
    recipe.name = "base_" + model;
    train(recipe, {});
    return file;
  }

  static recipe::Recipe grown_recipe(const std::string& model) {
    const std::string weights = base_weights(model).string();
    recipe::Recipe recipe = calls_recipe(model, "larger");
    recipe.model.weights = weights;
    recipe.transformer.vocabulary = size_ + 2;
    return recipe;
  }

  static inline tokens::Id size_ = 0;
};

// With a learning rate of 0 the run saves the weights that it began with.
TEST_F(GrownVocabulary, NewRowsBeginAsTheMeanAndOldOnesKeepTheirBits) {
  for (const char* model : {"gpt2", "llama"})
    for (const auto& balance : {std::vector<std::int64_t>{5}, {2, 1, 2}}) {
      recipe::Recipe recipe = grown_recipe(model);
      recipe.name += text("_", balance.size());
      recipe.pipeline.balance = balance;
      recipe.devices.use = balance.size() > 1 ? text("virtual:", balance.size()) : "cpu";
      recipe.optimizer.learning_rate = 0;
      recipe.transformer.vocabulary_multiple = 128;
      Notes notes;
      TrainHooks hooks;
      hooks.progress = &notes;
      const auto now = tensors(train(recipe, hooks).run_folder / "best.safetensors");
      EXPECT_THAT(notes.lines, HasSubstr("new rows  2 tokens that the weights do not have"));
      int tables = 0;
      for (const auto& [name, before] : tensors(base_weights(model))) {
        if (now.at(name).sizes() == before.sizes()) {
          EXPECT_TRUE(at::equal(now.at(name), before)) << name;
          continue;
        }
        ++tables;
        ASSERT_EQ(now.at(name).sizes(), (std::vector<std::int64_t>{size_ + 2, 16})) << name;
        EXPECT_TRUE(at::equal(now.at(name).narrow(0, 0, size_), before)) << name;
        for (const std::int64_t row : {size_, size_ + 1})
          EXPECT_TRUE(at::allclose(now.at(name)[row], before.mean(0), 1e-5, 1e-8)) << name;
      }
      EXPECT_EQ(tables, model == std::string_view("gpt2") ? 1 : 2);
    }
}

TEST_F(GrownVocabulary, RunWritesAndExportsTheNewTokens) {
  for (const char* model : {"gpt2", "llama"}) {
    recipe::Recipe recipe = grown_recipe(model);
    recipe.name += "_trained";
    const fs::path run = train(recipe, {}).run_folder;
    const TextModel opened = open_text_model(run);
    EXPECT_EQ(opened.config.vocabulary, size_ + 2);
    EXPECT_EQ(opened.known_tokens(), size_ + 2);
    EXPECT_EQ(opened.tokenizer->find("<|tool|>"), size_);
    // An ordinary token is found in text, a special one is not.
    EXPECT_EQ(opened.tokenizer->encode("<|tool|>"), std::vector<tokens::Id>{size_});
    EXPECT_GT(opened.tokenizer->encode("<|end|>").size(), 1U);
    EXPECT_TRUE(opened.tokenizer->is_special(size_ + 1));
    const auto before = tensors(base_weights(model)).at("embed.tokens").mean(0);
    const auto row = tensors(run / "best.safetensors").at("embed.tokens")[size_];
    EXPECT_GT((row - before).abs().max().item<float>(), 1e-4);  // the text has the token
    const fs::path folder = base_ / (std::string("exported_") + model);
    export_text_model(opened, folder);
    const TextModel again = open_text_model(folder);
    EXPECT_EQ(again.config.vocabulary, size_ + 2);
    EXPECT_EQ(again.tokenizer->hash(), opened.tokenizer->hash());
    const at::Tensor ids = torch::tensor({{1, static_cast<int>(size_), 7}}, at::kLong);
    EXPECT_TRUE(at::allclose(again.layers.forward(ids), opened.layers.forward(ids), 1e-5, 1e-6));
  }
}

TEST_F(GrownVocabulary, WorksOverRanks) {
  recipe::Recipe recipe = grown_recipe("gpt2");
  recipe.name += "_alone";
  const auto expected = tensors(train(recipe, {}).run_folder / "best.safetensors");
  recipe.pipeline.micro_batches = 2;
  expect_weights_of_plans(expected, recipe,
                          {{"stages_zero3", 4,
                            [](recipe::Recipe& r) {
                              r.pipeline.balance = {2, 3};
                              r.mesh.pipeline = 2;
                              r.mesh.shard = 2;
                              r.mesh.shard_level = "parameters";
                            }},
                           {"ddp", 2, [](recipe::Recipe& r) { r.mesh.replicate = 2; }},
                           {"tensor", 4, [](recipe::Recipe& r) {
                              r.mesh.tensor = 4;
                              r.mesh.sequence_parallel = true;
                            }}});
}

// Each tensor rank fills the slices of its new rows, from a run's file and from a public one, with
// the bits of one process: a learning rate of 0 saves them.
TEST_F(GrownVocabulary, TensorRanksFillTheRowsOfOneProcess) {
  for (const char* model : {"gpt2", "llama"}) {
    recipe::Recipe recipe = grown_recipe(model);
    recipe.optimizer.learning_rate = 0;
    recipe.optimizer.weight_decay = 0;
    export_text_model(open_text_model(base_weights(model).parent_path()),
                      base_ / (std::string("public_") + model));
    for (const fs::path& weights :
         {base_weights(model), base_ / (std::string("public_") + model)}) {
      recipe.model.weights = weights.string();
      recipe.mesh.tensor = 1;
      recipe.name = text("filled_", model, weights.filename() == "best.safetensors");
      const auto expected = tensors(train(recipe, {}).run_folder / "best.safetensors");
      for (const std::int64_t multiple : {1, 128})
        for (const int ranks : {2, 4}) {
          recipe::Recipe split = recipe;
          split.name += text("_", multiple, "_", ranks);
          split.transformer.vocabulary_multiple = multiple;
          split.mesh.tensor = ranks;
          const auto actual = tensors(on_ranks(ranks, split, {}).run_folder / "best.safetensors");
          ASSERT_EQ(actual.size(), expected.size());
          for (const auto& [name, tensor] : expected)
            EXPECT_TRUE(at::equal(actual.at(name), tensor)) << split.name << " " << name;
        }
    }
  }
}

TEST_F(GrownVocabulary, RefusesWhatWouldBeWrongOrNeverLearned) {
  recipe::Recipe recipe = grown_recipe("llama");
  recipe.name = "refused";
  recipe.transformer.layers = recipe.transformer.vocabulary = 0;  // those of the weights
  EXPECT_THAT(message_of([&] { train(recipe, {}); }),
              AllOf(HasSubstr(text("the tokenizer of the text has ", size_ + 2, " tokens")),
                    HasSubstr(text("vocabulary = ", size_ + 2))));
  recipe.transformer.vocabulary = size_ - 1;
  EXPECT_THAT(message_of([&] { train(recipe, {}); }),
              HasSubstr("rows of tokens are added, not removed"));
  recipe.transformer.vocabulary = size_ + 2;
  recipe.optimizer.frozen = {"embed"};
  EXPECT_THAT(message_of([&] { train(recipe, {}); }),
              AllOf(HasSubstr("never be learned"), HasSubstr("embed.tokens")));
  recipe.optimizer.frozen = {};
  recipe.adapters.rank = 2;
  EXPECT_THAT(message_of([&] { train(recipe, {}); }),
              AllOf(HasSubstr("2 new tokens have rows"), HasSubstr("modules_to_save")));
  // Rows that the weights have already, but no adapter trains.
  recipe::Recipe roomy = calls_recipe("llama", "plain");
  roomy.name = "roomy";
  roomy.transformer.vocabulary = size_ + 30;
  const fs::path weights = train(roomy, {}).run_folder / "best.safetensors";
  recipe.model.weights = weights.string();
  recipe.transformer.vocabulary = 0;
  EXPECT_THAT(message_of([&] { train(recipe, {}); }), HasSubstr("2 new tokens have rows"));
  recipe.adapters.rank = 0;
  EXPECT_TRUE(train(recipe, {}).finished);
  // Another tokenizer, not one with added tokens.
  recipe.data.tokens = (base_ / "text").string();
  recipe.name += "_other";
  EXPECT_THAT(message_of([&] { train(recipe, {}); }), HasSubstr("the model's tokenizer is"));
}

// The text of a stopped run is prepared again with more tokens.
TEST_F(GrownVocabulary, ResumedRunDoesNotGrow) {
  fs::remove_all(base_ / "changing");
  fs::copy(base_ / "plain", base_ / "changing", fs::copy_options::recursive);
  recipe::Recipe recipe = calls_recipe("gpt2", "changing");
  TrainHooks stopping;
  stopping.stop_after_steps = 1;
  const fs::path run = train(recipe, stopping).run_folder;
  EXPECT_THAT(message_of([&] {
                resume(run, {{"transformer.vocabulary", text(size_ + 2)}}, {});
              }),
              HasSubstr("vocabulary"));
  fs::remove_all(base_ / "changing");
  fs::copy(base_ / "larger", base_ / "changing", fs::copy_options::recursive);
  EXPECT_THAT(message_of([&] { resume(run, {}, {}); }),
              HasSubstr("the tokens were written with the tokenizer "));
}

}  // namespace
}  // namespace trestle::train
