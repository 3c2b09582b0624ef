#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "tests/megatron/example_flags.h"
#include "trestle/base/files.h"

// trestle train --megatron.
namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using MegatronVerb = ProgramTest;

TEST_F(MegatronVerb, PrintsARecipeThatTrains) {
  const Finished printed = run({"train", "--megatron",
                                std::string(megatron::smallest_flags) +
                                    "--data-path sea_text_document --vocab-size 256 \\\n"
                                    "--tokenizer-type HuggingFaceTokenizer --train-iters 2"});
  EXPECT_EQ(printed.code, 2);  // --train-iters is given twice
  EXPECT_THAT(printed.err, HasSubstr("line 2: --train-iters is given twice"));
  const Finished recipe = run({"train", "--megatron",
                               std::string(megatron::smallest_flags) +
                                   "--data-path sea_text_document --vocab-size 256 \\\n"
                                   "--tokenizer-type HuggingFaceTokenizer --eval-interval 5"});
  ASSERT_EQ(recipe.code, 0) << recipe.err;
  EXPECT_THAT(recipe.err, IsEmpty());
  write_file(folder_ / "mine.toml", recipe.out);
  std::string words;
  for (int i = 0; i < 60; ++i) words += "The ships sail, and the sea is wide.\n";
  write_file(folder_ / "sea.txt", words);
  const Finished text =
      run({"text", "prepare", "sea.txt", "--tokenizer", "bytes", "--out", "data/sea"});
  ASSERT_EQ(text.code, 0) << text.err;
  const Finished plan = run({"train", "mine.toml", "--dry-run"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  const Finished trained = run({"train", "mine.toml", "--max-steps", "6", "--epochs", "2"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("2 epochs, 6 steps"));
}

TEST_F(MegatronVerb, TakesTheWorldSizeFromRanks) {
  const Finished printed = run({"train", "--ranks", "4", "--megatron", megatron::smallest_flags});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, AllOf(HasSubstr("\nreplicate = 4 "), HasSubstr("\nbatch = 8 ")));
}

TEST_F(MegatronVerb, RefusesWhatItCannotObey) {
  const Finished refused =
      run({"train", "--megatron",
           std::string(megatron::smallest_flags) + "--clip_grad 1 --num-experts 8"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.out, IsEmpty());
  EXPECT_THAT(refused.err, AllOf(HasSubstr("did you mean '--clip-grad'?"),
                                 HasSubstr("--num-experts: there are no mixtures of experts"),
                                 HasSubstr("docs/megatron.md")));
}

TEST_F(MegatronVerb, TakesNoRecipeAndNoOtherFlags) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"gpt2"},
                                               {"--epochs", "3"},
                                               {"--dry-run"},
                                               {"--set", "epochs=3"}}) {
    std::vector<std::string> words = {"train", "--megatron", megatron::smallest_flags};
    words.insert(words.end(), more.begin(), more.end());
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << more[0];
    EXPECT_THAT(refused.err, HasSubstr("--megatron")) << more[0];
  }
}

}  // namespace
}  // namespace trestle
