#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class LevelsVerb : public ProgramTest {};

TEST_F(LevelsVerb, PrintsAndDrawsEachLevelBesideItsFormula) {
  const Finished done = run({"levels", "--layers", "4", "--width", "64", "--batch", "8", "--steps",
                             "1", "--svg", "levels.svg"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("MLP of 4 layers of 64 · 16,640 parameters · adamw · batch 8"));
  for (const char* name : {"plain ", "DDP ", "ZeRO-1 ", "ZeRO-2 ", "ZeRO-3, FSDP", "HSDP 2 x 2"})
    EXPECT_THAT(done.out, ContainsRegex(std::string("\n") + name)) << name;
  EXPECT_THAT(read_file(folder_ / "levels.svg"), HasSubstr("16/N bytes per parameter"));
}

TEST_F(LevelsVerb, TakesModelAndOptimizerOfRecipe) {
  const Finished paper = run({"levels", "small.toml", "--ranks", "2", "--dry-run", "--json"});
  ASSERT_EQ(paper.code, 0) << paper.err;
  EXPECT_THAT(paper.out, HasSubstr("\"name\":\"ZeRO-2\""));
  EXPECT_THAT(paper.out, ::testing::Not(HasSubstr("peak_bytes")));
  const Finished done = run({"levels", "small.toml", "--ranks", "2", "--steps", "1", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("peak_bytes"));
}

TEST_F(LevelsVerb, CountsFrozenLayersWithoutGradients) {
  write_recipe("frozen", "\"rmsprop\"", "\"sgd\"\nfrozen = [\"in\"]");
  const Finished paper = run({"levels", "frozen.toml", "--ranks", "2", "--dry-run"});
  ASSERT_EQ(paper.code, 0) << paper.err;
  EXPECT_THAT(paper.out, ContainsRegex(" trained parameters and [0-9,]+ frozen ones of "));
  EXPECT_THAT(paper.out, HasSubstr("frozen    weights have no gradients and no optimizer state"));
  const Finished done = run({"levels", "frozen.toml", "--ranks", "2", "--steps", "1", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("peak_bytes"));
}

TEST_F(LevelsVerb, GivesTheLeastTimeOnALink) {
  const Finished paper = run({"levels", "--layers", "4", "--width", "64", "--ranks", "4",
                              "--dry-run", "--link", "1Mbit,5ms"});
  ASSERT_EQ(paper.code, 0) << paper.err;
  EXPECT_THAT(paper.out, HasSubstr("link      1 Mbit/s and 5 ms each way"));
  // 2 x 3/4 of 66,560 bytes at 125,000 x 1448 / 1538 x 3076 / 3160 bytes per second, and three
  // messages of 5 ms.
  EXPECT_THAT(paper.out, HasSubstr("DDP 887 ms"));
  const Finished json = run({"levels", "--dry-run", "--json", "--link", "1Gbit"});
  EXPECT_THAT(json.out, HasSubstr("\"link_seconds\":"));
  const Finished refused = run({"levels", "--dry-run", "--link", "5ms"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'5ms' is not a bandwidth"));
}

// The keys of a recipe that recompute layers, and the flags of the same names.
TEST_F(LevelsVerb, RecomputesAsTheRecipeAndItsFlagsSay) {
  const auto peak = [](const Finished& done) {
    EXPECT_EQ(done.code, 0) << done.err;
    const std::string name = "\"peak_bytes\":";
    const auto at = done.out.find(name);
    return at == std::string::npos ? 0L : std::stol(done.out.substr(at + name.size()));
  };
  const std::vector<std::string> command = {"levels",  "--layers", "24",      "--width", "8",
                                            "--batch", "4096",     "--steps", "1",       "--json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), command.begin(), command.end());
    return run(more);
  };
  EXPECT_LT(peak(with({"--checkpoint-segments", "6"})), peak(with({})) / 2);
  EXPECT_LE(peak(with({"--checkpoint", "layers"})), peak(with({})));
  EXPECT_THAT(with({"--checkpoint", "linaer1"}).err, HasSubstr("linear1"));
  EXPECT_EQ(with({"--checkpoint", "layers", "--checkpoint-segments", "2"}).code, 2);
  write_recipe("segments", "[pipeline]", "[pipeline]\ncheckpoint_segments = 4");
  const auto of = [&](const char* recipe) {
    return peak(run({"levels", recipe, "--ranks", "2", "--steps", "1", "--json"}));
  };
  EXPECT_LT(of("segments.toml"), of("small.toml"));
}

// The recipe's other optimizer fields stay, as with `trestle train`.
TEST_F(LevelsVerb, KeepsOptimizerFieldsOfRecipeUnderOtherName) {
  write_recipe("heavy", "\"rmsprop\"", "\"sgd\"\nmomentum = 0.9");
  const auto paper = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"levels", "heavy.toml", "--dry-run"});
    const Finished done = run(more);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  EXPECT_EQ(paper({"--optimizer", "sgd"}), paper({}));
  EXPECT_THAT(paper({"--optimizer", "rmsprop"}), ContainsRegex("\nplain +16 "));
}

// The columns of a printed row, separated by two spaces or more: "DDP", "16", "64.1 MiB", ...
std::vector<std::string> columns(const std::string& line) {
  std::vector<std::string> found;
  for (const std::string& part : split(line, ' ')) {
    if (part.empty()) {
      if (found.empty() || !found.back().empty()) found.emplace_back();
    } else if (found.empty() || found.back().empty()) {
      if (found.empty()) found.emplace_back();
      found.back() = part;
    } else {
      found.back() += " " + part;
    }
  }
  return found;
}

// docs/which_one.md shows the program's output, except for peaks and times, which vary.
TEST_F(LevelsVerb, PrintsNumbersOfDocumentation) {
  const std::string page = read_file(std::string(TRESTLE_SOURCE_DIR) + "/docs/which_one.md");
  const Finished done = run({"levels", "--steps", "1"});
  ASSERT_EQ(done.code, 0) << done.err;
  int rows = 0;
  for (const std::string& line : split(done.out, '\n')) {
    const auto wanted = columns(line);
    if (wanted.size() < 8 || wanted[0].empty()) continue;
    ++rows;
    bool shown = false;
    for (const std::string& other : split(page, '\n')) {
      const auto said = columns(other);
      if (said.size() < 8 || said[0] != wanted[0]) continue;
      shown = true;
      for (const std::size_t i : {1, 2, 3, 5, 6}) EXPECT_EQ(said[i], wanted[i]) << other;
      break;
    }
    EXPECT_TRUE(shown) << line;
  }
  EXPECT_EQ(rows, 6) << done.out;
}

// The formulas need no model, so a model larger than any machine is printed at once.
TEST_F(LevelsVerb, DryRunAcceptsModelOfAnySize) {
  const Finished done =
      run({"levels", "--ranks", "64", "--layers", "96", "--width", "12288", "--dry-run"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("14,496,694,272 parameters"));
}

TEST_F(LevelsVerb, RefusesInvalidRequests) {
  const auto refusal = [](std::vector<std::string> words) {
    words.insert(words.begin(), "levels");
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.err;
    return done.err;
  };
  EXPECT_THAT(refusal({"--ranks", "1"}), HasSubstr("--ranks"));
  EXPECT_THAT(refusal({"--replicate", "3"}), HasSubstr("a mesh of 3 rows on 4 ranks"));
  EXPECT_THAT(refusal({"--batch", "2"}), HasSubstr("a batch of 2 on 4 ranks"));
  EXPECT_THAT(refusal({"--svg", "small.toml"}), HasSubstr("must end in .svg"));
  EXPECT_THAT(refusal({"--optimizer", "adm"}), HasSubstr("adam"));
  EXPECT_THAT(refusal({"--bucket", "0", "--dry-run"}), HasSubstr("--bucket 0"));
  write_recipe("frozen", "\"rmsprop\"", "\"sgd\"\nfrozen = [\"inn\"]");
  EXPECT_THAT(refusal({"frozen.toml", "--dry-run"}), HasSubstr("'frozen' in [optimizer]"));
  EXPECT_THAT(refusal({"none.toml"}), HasSubstr("none.toml"));
  EXPECT_THAT(refusal({"--dry-run", "--svg", "a.svg"}), HasSubstr("--svg"));
}

}  // namespace
}  // namespace trestle
