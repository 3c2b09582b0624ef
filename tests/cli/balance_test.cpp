#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/plan/layer_profile.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class BalanceVerb : public ProgramTest {};

TEST_F(BalanceVerb, PrintsEachLayerAndCut) {
  const Finished done = run({"balance", "small.toml", "--save", "layers.json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("unet · 22 layers"));
  EXPECT_THAT(done.out, HasSubstr("── stage 1 · "));
  EXPECT_THAT(done.out, HasSubstr("balance = ["));
  EXPECT_EQ(plan::layer_profile_from_json(read_file(folder_ / "layers.json")).layers.size(), 22u);
}

TEST_F(BalanceVerb, BalancesByTimeBySizeAndWithinBudgets) {
  for (const std::string by : {"time", "size", "both"}) {
    const Finished done =
        run({"balance", "small.toml", "--by", by, "--json", "--devices", "virtual:3x64MiB"});
    EXPECT_EQ(std::ranges::count(done.out, '\n'), 1) << "one object per line";
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("{\"balance\": ["));
  }
  const Finished tight =
      run({"balance", "small.toml", "--by", "time", "--devices", "virtual:2x1KiB"});
  EXPECT_EQ(tight.code, 0) << tight.err;
  EXPECT_THAT(tight.out, HasSubstr("has 1.0 KiB"));
  const Finished small = run({"balance", "small.toml", "--devices", "virtual:2x1KiB"});
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.err, HasSubstr("no cut into 2 stages fits the budgets: the smallest needs"));
  EXPECT_EQ(run({"balance", "small.toml", "--by", "luck"}).code, 2);
  EXPECT_EQ(run({"balance"}).code, 2);
}

// Regression: the picture of a cut overwrote the recipe.
TEST_F(BalanceVerb, WritesPicturesAndProfilesUnderTheirExtensionsOnly) {
  const std::string before = read_file(folder_ / "small.toml");
  const Finished picture = run({"balance", "small.toml", "--svg", "small.toml"});
  EXPECT_EQ(picture.code, 2);
  EXPECT_THAT(picture.err, HasSubstr("--svg small.toml: the file's name must end in .svg"));
  const Finished profile = run({"balance", "small.toml", "--save", "small.toml"});
  EXPECT_EQ(profile.code, 2);
  EXPECT_EQ(read_file(folder_ / "small.toml"), before);
}

// The rule of base/overwrite.h in the verbs that write files and need no run.
TEST_F(BalanceVerb, ExistingFilesAreReplacedOnlyWithOverwrite) {
  for (const char* name : {"a.svg", "a.json", "a.csv", "sweep.csv"})
    write_file(folder_ / name, "mine");
  const std::vector<std::string> drawn = {"view", "--schedule", "gpipe", "--stages",
                                          "2",    "--out",      "a.svg"};
  const std::vector<std::vector<std::string>> lines = {
      drawn,
      {"view", "--schedule", "gpipe", "--save-csv", "a.csv"},
      {"balance", "small.toml", "--svg", "a.svg"},
      {"balance", "small.toml", "--save", "a.json"},
      {"levels", "--svg", "a.svg"},
      {"sweep", "small.toml", "--out", ".", "--dry-run"}};
  for (const auto& line : lines) {
    const Finished done = run(line);
    EXPECT_EQ(done.code, 2) << line[0];
    EXPECT_THAT(done.err,
                AllOf(HasSubstr("exist"), HasSubstr("already"), HasSubstr("--overwrite")));
  }
  for (const char* name : {"a.svg", "a.json", "a.csv", "sweep.csv"})
    EXPECT_EQ(read_file(folder_ / name), "mine");
  std::vector<std::string> allowed = drawn;
  allowed.push_back("--overwrite");
  EXPECT_EQ(run(allowed).code, 0);
  EXPECT_THAT(read_file(folder_ / "a.svg"), HasSubstr("<svg"));
}

TEST_F(BalanceVerb, RefusesEmptyListOfModes) {
  write_recipe("empty", "micro_batches = 2", "micro_batches = 2\nrecompute = []");
  const Finished done = run({"balance", "empty.toml"});
  EXPECT_EQ(done.code, 2) << done.err;
  EXPECT_THAT(done.err, HasSubstr("'recompute' in [pipeline] is an empty list"));
}

// Regression: the folder for synthetic digits was "", and they were moved nowhere.
TEST_F(BalanceVerb, RefusesDataWithoutFolder) {
  write_file(folder_ / "digits.toml",
             "[model]\nname = \"resnet18\"\n[data]\nname = \"mnist\"\nsynthesize = 30\n");
  const Finished done = run({"balance", "digits.toml"});
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, HasSubstr("mnist needs 'folder' in [data]"));
}

std::string last_lines(const std::string& out) { return out.substr(out.find("gpipe · ")); }

// A saved profile gives the cut of its measurement and needs no data.
TEST_F(BalanceVerb, CutsBySavedProfilesAndPredictsStep) {
  const Finished measured = run({"balance", "small.toml", "--save", "saved.json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out,
              ContainsRegex("gpipe · 2 micro-batches · recompute .* · predicted .* per step, "
                            "[0-9]+ % idle\npredicted peaks: virtual:0 .*B · virtual:1 .*B\n"));
  write_recipe("without_data", "\"cars/train_hq\"", "\"nowhere\"");
  const Finished again = run({"balance", "--profile", "saved.json", "without_data.toml"});
  ASSERT_EQ(again.code, 0) << again.err;
  const std::string wrote = "wrote saved.json\n";
  EXPECT_EQ(last_lines(again.out) + wrote, last_lines(measured.out));

  const Finished drawn =
      run({"balance", "--profile", "saved.json", "small.toml", "--svg", "cut.svg"});
  EXPECT_THAT(drawn.out, HasSubstr("\nwrote cut.svg\n"));
  EXPECT_THAT(read_file(folder_ / "cut.svg"), AllOf(HasSubstr("up4_conv"), HasSubstr("gpipe · 2")));
  EXPECT_EQ(run({"balance", "--profile", "saved.json", "small.toml", "--svg", "no/cut.svg"}).code,
            2);

  const Finished json = run({"balance", "--profile", "saved.json", "small.toml", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.out,
              ContainsRegex("\"predicted_step_seconds\": [0-9.e-]+, \"predicted_idle\": 0[.0-9]*, "
                            "\"predicted_peak_bytes\": \\[[0-9]+, [0-9]+\\], \"profile\""));
  const Finished cpu =
      run({"balance", "--profile", "saved.json", "small.toml", "--json", "--devices", "cpu,cpu"});
  ASSERT_EQ(cpu.code, 0) << cpu.err;
  EXPECT_THAT(cpu.out,
              HasSubstr("\"predicted_idle\": 0.5, \"predicted_peak_bytes\": [null, null]"));
}

TEST_F(BalanceVerb, RefusesProfilesThatDoNotMatch) {
  const auto refusal = [](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  ASSERT_EQ(run({"balance", "small.toml", "--save", "good.json"}).code, 0);
  write_recipe("other", "\"unet\"", "\"resnet18_flat\"");
  EXPECT_THAT(refusal({"balance", "--profile", "good.json", "other.toml"}),
              HasSubstr("the profile is not of the model 'resnet18_flat': it has 22 layers"));
  EXPECT_THAT(refusal({"balance", "--profile", "none.json", "small.toml"}),
              HasSubstr("there is no file 'none.json'"));
  write_file(folder_ / "broken.json", "{");
  EXPECT_THAT(refusal({"balance", "--profile", "broken.json", "small.toml"}),
              AllOf(HasSubstr("not a layer profile"), HasSubstr("broken.json")));
  std::string torn = read_file(folder_ / "good.json");
  torn.replace(torn.find("\"values\": ["), std::string::npos, "\"values\": [], \"together\": []}");
  write_file(folder_ / "torn.json", torn);
  EXPECT_THAT(refusal({"balance", "--profile", "torn.json", "small.toml"}),
              HasSubstr("goes from stage 0 to a later one"));
  EXPECT_THAT(refusal({"balance", "--profile", "good.json", "--save", "x.json", "small.toml"}),
              HasSubstr("--save"));
  EXPECT_THAT(refusal({"balance", "--profile", "good.json", "small.toml", "--svg", "cars"}),
              HasSubstr("--svg"));
  EXPECT_THAT(refusal({"balance", "cars"}), HasSubstr("cars: is a folder"));
}

// A balance counts what the recipe's recomputed layers keep, and their second forward.
// Both are cut by size: a cut by time follows the measured times, which change between runs.
TEST_F(BalanceVerb, MeasuresRecomputedLayers) {
  const auto measured = [](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return nlohmann::json::parse(done.out);
  };
  const auto inside = [](const nlohmann::json& balance) {
    std::int64_t bytes = 0;
    for (const auto& layer : balance.at("profile").at("layers"))
      bytes += layer.at("inner_bytes").get<std::int64_t>();
    return bytes;
  };
  const auto kept = measured({"balance", "small.toml", "--by", "size", "--json"});
  write_recipe("recomputed", "[pipeline]\n", "[pipeline]\ncheckpoint = [\"layers\"]\n");
  const auto recomputed = measured(
      {"balance", "recomputed.toml", "--by", "size", "--json", "--save", "recomputed.json"});
  EXPECT_LT(inside(recomputed), inside(kept) / 4);
  const auto largest_peak = [](const nlohmann::json& balance) {
    const auto peaks = balance.at("predicted_peak_bytes").get<std::vector<std::int64_t>>();
    return *std::ranges::max_element(peaks);
  };
  EXPECT_LT(largest_peak(recomputed), largest_peak(kept));
  EXPECT_EQ(run({"balance", "--profile", "recomputed.json", "recomputed.toml"}).code, 0);
  EXPECT_THAT(run({"balance", "--profile", "recomputed.json", "small.toml"}).err,
              HasSubstr("the profile was measured with layers recomputed, the recipe recomputes no "
                        "layer ('checkpoint' in [pipeline])"));
}

// Times and bytes hold for the micro-batch, memory format and widths of the measurement.
TEST_F(BalanceVerb, RefusesProfilesOfOtherMicroBatchFormatOrWidth) {
  ASSERT_EQ(run({"balance", "small.toml", "--save", "good.json"}).code, 0);
  const auto refusal = [&](const std::string& words, const std::string& other) {
    write_recipe("other", words, other);
    const Finished done = run({"balance", "--profile", "good.json", "other.toml"});
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  EXPECT_THAT(refusal("micro_batches = 2", "micro_batches = 4"),
              HasSubstr("the profile is of micro-batches of 2, the recipe's have 1"));
  EXPECT_THAT(refusal("[model]", "[model]\nmemory_format = \"channels_last\""),
              HasSubstr("was measured contiguous, the recipe runs channels_last"));
  EXPECT_THAT(refusal("width = 4", "width = 8"), HasSubstr("of weights there and"));
}

// A cut of a recipe that cannot train is useless.
TEST_F(BalanceVerb, RefusesWhatTrainRefuses) {
  const auto refusal = [&](const std::string& words, const std::string& other) {
    write_recipe("other", words, other);
    const Finished balance = run({"balance", "other.toml"});
    const Finished train = run({"train", "other.toml", "--dry-run"});
    EXPECT_EQ(balance.code, 2) << balance.out;
    EXPECT_EQ(balance.err, train.err);
    return balance.err;
  };
  EXPECT_THAT(refusal("\"rmsprop\"", "\"lion\""), HasSubstr("lion"));
  EXPECT_THAT(refusal("[pipeline]", "[pipeline]\nbatch_norm = \"some\""),
              HasSubstr("batch norm statistics 'some'"));
  EXPECT_THAT(refusal("[pipeline]", "[pipeline]\nschedule = \"1f1b\""), HasSubstr("1f1b"));
}

}  // namespace
}  // namespace trestle
