#include "trestle/megatron/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/fuzz/fuzz.h"
#include "tests/megatron/example_flags.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/megatron/known_flags.h"
#include "trestle/megatron/to_recipe.h"
#include "trestle/recipe/recipe.h"

namespace trestle::megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// "--a=1,2 --b=" for a flag with two values and one without.
std::string shown(std::string_view text) {
  std::vector<std::string> words;
  for (const Flag& flag : parse_flags(text))
    words.push_back(flag.name + "=" + join(flag.values, ","));
  return join(words, " ");
}

TEST(MegatronFlags, AreSplitAsByAShell) {
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("--a 1 --b"), "--a=1 --b=");
  EXPECT_EQ(shown("  --a\t1 \\\n  --b 2 3\\\n --c"), "--a=1 --b=2,3 --c=");
  EXPECT_EQ(shown("--a 1 \\\r\n --b 2\r\n"), "--a=1 --b=2");
  EXPECT_EQ(shown("--a=1 --b=x=y --c="), "--a=1 --b=x=y --c=");
  EXPECT_EQ(shown("--a 'x y' --b \"p  q\" --c u'v'\"w\""), "--a=x y --b=p  q --c=uvw");
  EXPECT_EQ(shown(R"(--a "say \"hi\" \\ \n" --b it\'s --c 'a\b')"),
            R"(--a=say "hi" \ \n --b=it's --c=a\b)");
  EXPECT_EQ(shown("--a 1 # of --b 2\n--c 3#4"), "--a=1 --c=3#4");
  EXPECT_EQ(shown("--a -1 --b -.5 --c -1e3"), "--a=-1 --b=-.5 --c=-1e3");
  EXPECT_EQ(shown("--a $PATH/\"$NAME\" -x 1"), "--a=$PATH/$NAME -x=1");
  EXPECT_EQ(shown("--a \\"), "--a=");
  EXPECT_EQ(shown("--a ''"), "--a=");
  EXPECT_EQ(parse_flags("--a ''").at(0).values, std::vector<std::string>{""});
}

TEST(MegatronFlags, HaveTheirLines) {
  const auto flags = parse_flags("--a 1 \\\n--b 'x\ny' # c\n--c\n\n--d");
  std::vector<int> lines;
  for (const Flag& flag : flags) lines.push_back(flag.line);
  EXPECT_EQ(lines, (std::vector<int>{1, 2, 4, 6}));
}

TEST(MegatronFlags, NeedClosedQuotesAndAFlagFirst) {
  EXPECT_THAT(support::message_of<UsageError>([] { parse_flags("--a 1\n--b 'x\n --c"); }),
              HasSubstr("the quote ' in line 2 has no end"));
  EXPECT_THAT(support::message_of<UsageError>([] { parse_flags("torchrun pretrain_gpt.py --a"); }),
              AllOf(HasSubstr("'torchrun', 'pretrain_gpt.py' belong to no flag"),
                    HasSubstr("Give the flags alone")));
}

TEST(MegatronFlags, AreShownOnOneLine) {
  EXPECT_EQ(on_one_line("a\nb\x1b[31m"), "a?b?[31m");
  EXPECT_EQ(on_one_line(std::string(100, 'x')), std::string(80, 'x') + "...");
}

TEST(MegatronFlags, AreKnownOnce) {
  std::set<std::string_view> names;
  for (const KnownFlag& known : known_flags()) {
    EXPECT_TRUE(names.insert(known.name).second) << known.name << " is there twice";
    EXPECT_EQ(known.reason.empty(), known.kind == KnownFlag::Kind::Read) << known.name;
    EXPECT_TRUE(known.name.starts_with("--")) << known.name;
  }
}

TEST(MegatronFlags, AnyTextIsParsedOrRefused) {
  const auto result = fuzz::run({flags_of_345m, llama_flags, "--a='b c' -x \"\\\"\" # d\n\\\n--e"},
                                [](std::string_view text) {
                                  for (const Flag& flag : parse_flags(text)) {
                                    EXPECT_GE(flag.name.size(), 1U);
                                    EXPECT_GE(flag.line, 1);
                                  }
                                });
  EXPECT_GT(result.accepted, 1000);
  EXPECT_GT(result.refused, 500);
}

// Whatever the values are: the recipe is one that trestle reads, or the flags are refused.
TEST(MegatronFlags, GiveAValidRecipeOrARefusal) {
  const std::string smallest = smallest_flags;
  const auto result =
      fuzz::run({flags_of_345m, llama_flags, smallest + "--pipeline-model-parallel-size 2 --bf16",
                 smallest + "--global-batch-size 8 --lr-warmup-iters 10 --recompute-activations",
                 smallest + "--use-distributed-optimizer --nproc_per_node 4 --save 'a b' --fp16"},
                [](std::string_view text) { recipe::parse_recipe(to_recipe(text), "fuzz"); },
                {.iterations = 400});
  EXPECT_GT(result.accepted, 5);
  EXPECT_GT(result.refused, 200);
}

}  // namespace
}  // namespace trestle::megatron
