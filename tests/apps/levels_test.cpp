#include <gmock/gmock.h>

#include "tests/apps/program.h"
#include "trestle/base/files.h"

namespace trestle {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class LevelsVerb : public ProgramTest {};

TEST_F(LevelsVerb, PrintsAndDrawsEachLevelBesideItsFormula) {
  const Finished done = run({"levels", "--layers", "4", "--width", "64", "--batch", "8", "--steps",
                             "1", "--svg", "levels.svg"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("MLP of 4 layers of 64 · 16,640 parameters · adamw · batch 8"));
  for (const char* name : {"plain ", "DDP ", "ZeRO-1 ", "ZeRO-2 ", "ZeRO-3, FSDP", "HSDP 2 x 2"})
    EXPECT_THAT(done.out, ContainsRegex(std::string("\n") + name)) << name;
  EXPECT_THAT(read_file(folder_ / "levels.svg"), HasSubstr("16/N bytes a parameter"));
}

TEST_F(LevelsVerb, TakesARecipesModelAndOptimizer) {
  const Finished paper = run({"levels", "small.toml", "--ranks", "2", "--dry-run", "--json"});
  ASSERT_EQ(paper.code, 0) << paper.err;
  EXPECT_THAT(paper.out, HasSubstr("\"name\":\"ZeRO-2\""));
  EXPECT_THAT(paper.out, testing::Not(HasSubstr("peak_bytes")));
  const Finished done = run({"levels", "small.toml", "--ranks", "2", "--steps", "1", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("peak_bytes"));
}

TEST_F(LevelsVerb, WrongWordsAreRefused) {
  const auto refusal = [](std::vector<std::string> words) {
    words.insert(words.begin(), "levels");
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.err;
    return done.err;
  };
  EXPECT_THAT(refusal({"--ranks", "1"}), HasSubstr("--ranks"));
  EXPECT_THAT(refusal({"--replicate", "3"}), HasSubstr("a mesh of 3 rows on 4 ranks"));
  EXPECT_THAT(refusal({"--batch", "2"}), HasSubstr("a batch of 2 on 4 ranks"));
  EXPECT_THAT(refusal({"--svg", "small.toml"}), HasSubstr("the file ends in .svg"));
  EXPECT_THAT(refusal({"--optimizer", "adm"}), HasSubstr("adam"));
  EXPECT_THAT(refusal({"none.toml"}), HasSubstr("none.toml"));
  EXPECT_THAT(refusal({"--dry-run", "--svg", "a.svg"}), HasSubstr("--svg"));
}

}  // namespace
}  // namespace trestle
