#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"

// A dry run refuses what the run refuses.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DryRun : public ProgramTest {};

TEST_F(DryRun, RefusesWhatRunRefuses) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--frozen", "norn"}, "'frozen' in [optimizer]: no layer or parameter is named 'norn'"},
      {{"--frozen", "*"}, "nothing is left to train"},
      {{"--rate-factors", "in"}, "\"pattern=factor\""},
      {{"--no-weight-decay", "nothing"}, "no layer or parameter is named 'nothing'"},
      {{"--weights", "none.safetensors"}, "none.safetensors: there is no such file"},
      {{"--batch", "1000"}, "examples to train on, fewer than one batch of 1000"},
      {{"--validation", "0", "--plateau", "true"}, "needs the validation metric"},
      {{"--validation", "0", "--patience", "3"}, "needs the validation metric"},
  };
  for (const auto& [flags, words] : refused) {
    std::vector<std::string> arguments = {"train", "small.toml", "--name", "refused"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished trained = run(arguments);
    EXPECT_EQ(trained.code, 2) << words;
    arguments.emplace_back("--dry-run");
    const Finished planned = run(arguments);
    EXPECT_EQ(planned.code, 2) << words;
    EXPECT_EQ(planned.err, trained.err);
    EXPECT_THAT(planned.err, HasSubstr(words));
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs/refused"));
}

// There is no GPU here: the seconds are those of the CPU, and the plan says so.
TEST_F(DryRun, NamesDeviceThatSecondsWereMeasuredOn) {
  const Finished gpus = run({"train", "small.toml", "--dry-run", "--devices", "cuda:0,cuda:1"});
  ASSERT_EQ(gpus.code, 0) << gpus.err;
  EXPECT_THAT(gpus.out,
              HasSubstr(" % idle (from small samples) on this machine's CPU, not on the GPUs"));
  EXPECT_THAT(gpus.out, HasSubstr("peak about"));
  EXPECT_THAT(run({"train", "small.toml", "--dry-run"}).out,
              HasSubstr(" % idle (from small samples)\n"));
}

TEST_F(DryRun, TakesTheLinkBetweenHosts) {
  const auto seconds = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"train", "small.toml", "--dry-run", "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    const std::string key = "\"predicted_step_seconds\":";
    return std::stod(done.out.substr(done.out.find(key) + key.size()));
  };
  // At 1 Mbit/s the messages between two stages take many times as long as the stages.
  EXPECT_GT(seconds({"--devices", "virtual:2", "--link", "1Mbit,5ms"}),
            2 * seconds({"--devices", "virtual:2"}));
  EXPECT_GT(seconds({"--mesh", "replicate=2", "--link", "1Mbit,5ms"}),
            2 * seconds({"--mesh", "replicate=2"}));
  const Finished plan =
      run({"train", "small.toml", "--dry-run", "--mesh", "replicate=2", "--link", "1Mbit,5ms"});
  EXPECT_THAT(plan.out, HasSubstr("network   1 Mbit/s and 5 ms each way (given) · each rank on a "
                                  "host of its own\n"));
  EXPECT_THAT(plan.out, HasSubstr(" of it data-parallel communication"));
  const Finished refused = run({"train", "small.toml", "--dry-run", "--link", "fast"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'fast' is not a bandwidth such as 100Mbit"));
}

// "--shape 3,64,64" of train and "--set data.shape=3,64,64" of sweep are one spelling.
TEST_F(DryRun, TrainTakesFieldsAsSweepDoes) {
  const auto planned = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"train", "small.toml", "--dry-run", "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    const auto begin = done.out.find("\"micro_batches\"");
    return done.out.substr(begin, done.out.find(',', begin) - begin);
  };
  EXPECT_EQ(planned({"--set", "micro_batches=4"}), "\"micro_batches\":4");
  EXPECT_EQ(planned({"--set", "pipeline.micro_batches=4", "--set", "train.batch=4"}),
            planned({"--micro-batches", "4", "--batch", "4"}));
  const Finished twice =
      run({"train", "small.toml", "--dry-run", "--epochs", "2", "--set", "train.epochs=3"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("--set train.epochs=3: 'train.epochs' is given twice"));
  const Finished unknown = run({"train", "small.toml", "--dry-run", "--set", "bach=3"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'batch'?"));
}

// The language models that ship, without their texts.
class LanguageRecipes : public ProgramTest {
 protected:
  static nlohmann::json planned(std::vector<std::string> words) {
    words.insert(words.end(), {"--dry-run", "--json"});
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    const auto begin = done.out.find("{\"event\":\"plan\"");
    if (begin == std::string::npos) return nlohmann::json::parse(done.out);
    return nlohmann::json::parse(done.out.substr(begin, done.out.find('\n', begin) - begin));
  }
  static std::string recipe(const std::string& name) {
    return std::string(TRESTLE_SOURCE_DIR) + "/recipes/" + name + ".toml";
  }
};

// Llama: 8 blocks of width 384, and a table and a head of 4,096 tokens. Each parameter has a
// weight, a gradient and two moments of 4 bytes.
TEST_F(LanguageRecipes, PlanOfSmallLlamaFitsItsDevices) {
  constexpr std::int64_t table = 4096 * 384;
  constexpr std::int64_t block = (10 * 64 + 384) * 384 + 3 * 1024 * 384 + 2 * 384;
  const nlohmann::json plan = planned({"train", recipe("llama_small")});
  EXPECT_EQ(plan.at("parameters"), 2 * table + 8 * block + 384);
  EXPECT_THAT(plan.at("data_missing").get<std::string>(), HasSubstr("data/llama_tokens"));
  const auto peak = [&](std::size_t stage) {
    return plan.at("stages").at(stage).at("predicted_peak_bytes").get<std::int64_t>();
  };
  EXPECT_GT(peak(0), 16 * (table + 5 * block));
  EXPECT_GT(peak(1), 16 * (table + 3 * block));
  for (const std::size_t stage : {0, 1}) EXPECT_LT(peak(stage), std::int64_t{1} << 30);
  const Finished refused = run({"train", recipe("llama_small")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(
      refused.err,
      HasSubstr("`trestle text prepare TEXT --tokenizer TOKENIZER --out data/llama_tokens`"));
}

// The last stage has a copy of the table with a gradient; the first one has the optimizer's state.
TEST_F(LanguageRecipes, PlanOfGpt2CountsTheTableOncePerStage) {
  constexpr std::int64_t table = 50257 * 768, positions = 1024 * 768;
  constexpr std::int64_t block = 12 * 768 * 768 + 13 * 768;
  const nlohmann::json plan = planned({"train", recipe("gpt2")});
  EXPECT_EQ(plan.at("parameters"), 124'439'808);
  EXPECT_EQ(table + positions + 12 * block + 2 * 768, 124'439'808);
  const std::vector<std::int64_t> weights = {16 * (table + positions + 3 * block), 16 * 4 * block,
                                             16 * 4 * block, 16 * (block + 2 * 768) + 8 * table};
  for (std::size_t stage = 0; stage < weights.size(); ++stage) {
    const nlohmann::json& row = plan.at("stages").at(stage);
    EXPECT_GT(row.at("predicted_peak_bytes"), weights[stage]) << stage;
    EXPECT_LT(row.at("predicted_peak_bytes"), row.at("budget_bytes")) << stage;
  }
}

TEST_F(LanguageRecipes, LevelsOfGpt2CountTheTableOnce) {
  const nlohmann::json paper = planned({"levels", recipe("gpt2")});
  EXPECT_EQ(paper.at("parameters"), 124'439'808);
  EXPECT_EQ(paper.at("frozen_bytes"), 0);
  EXPECT_EQ(paper.at("levels").at(0).at("formula_bytes"), 16 * 124'439'808LL);
  EXPECT_EQ(paper.at("levels").at(4).at("formula_bytes"), 4 * 124'439'808LL);
}

// recipes/smollm_finetune.toml without its weights file.
TEST_F(LanguageRecipes, PlanOfSmolLmWithRecomputedBlocksFitsItsDevices) {
  write_file(folder_ / "adapters.toml",
             "[model]\nname = \"llama\"\n[transformer]\nconfig = \"smollm2-135m\"\ncontext = 64\n"
             "[adapters]\nadapter_rank = 8\nadapter_targets = [\"q_proj\", \"v_proj\", "
             "\"gate_proj\", \"up_proj\", \"down_proj\"]\n[data]\nname = \"tokens\"\n"
             "tokens = \"none\"\n[devices]\nuse = \"virtual:2x512MiB\"\n[pipeline]\n"
             "micro_batches = 2\nschedule = \"1f1b\"\nbalance = [18, 15]\n"
             "checkpoint = [\"layers\"]\n[optimizer]\nname = \"adamw\"\n[train]\nbatch = 8\n");
  const nlohmann::json plan = planned({"train", "adapters.toml"});
  EXPECT_EQ(plan.at("frozen_parameters"), 134'515'008);
  // The run measures these MiB. Without the recomputation it would need 717 and 629.
  const std::vector<double> measured = {383.5, 449.1};
  for (const std::size_t stage : {0, 1}) {
    const double peak = plan.at("stages").at(stage).at("predicted_peak_bytes").get<double>();
    EXPECT_NEAR(peak / 1048576 / measured[stage], 1, 0.02) << stage;
  }
}

// The adapters of SmolLM2: of 30 blocks, of the queries [8, 576] and [576, 8], of the values
// [8, 576] and [192, 8]. The frozen matrices are bf16, the 61 norms of 576 fp32.
TEST_F(LanguageRecipes, LevelsOfSmolLmCountFrozenWeights) {
  constexpr std::int64_t adapters = 30 * 8 * (2 * 576 + 576 + 192);
  constexpr std::int64_t norms = 61 * 576;
  write_file(folder_ / "smol.toml",
             "[model]\nname = \"llama\"\n[transformer]\nconfig = \"smollm2-135m\"\ncontext = 128\n"
             "[adapters]\nadapter_rank = 8\nfrozen_type = \"bf16\"\n[data]\nname = \"tokens\"\n"
             "tokens = \"none\"\n[optimizer]\nname = \"adamw\"\n[train]\nbatch = 4\n");
  const nlohmann::json paper = planned({"levels", "smol.toml"});
  constexpr std::int64_t frozen_bytes = 2 * (134'515'008 - norms) + 4 * norms;
  EXPECT_EQ(paper.at("trained_parameters"), adapters);
  EXPECT_EQ(paper.at("parameters"), adapters + 134'515'008);
  EXPECT_EQ(paper.at("frozen_bytes"), frozen_bytes);
  EXPECT_EQ(paper.at("levels").at(1).at("formula_bytes"), 16 * adapters + frozen_bytes);
  EXPECT_EQ(paper.at("levels").at(4).at("formula_bytes"), 4 * adapters + frozen_bytes / 4);
}

}  // namespace
}  // namespace trestle
