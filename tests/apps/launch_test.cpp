// `trestle launch`: what the library does is in tests/launch; here is what the verb adds.
#include <gmock/gmock.h>

#include "tests/apps/program.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class LaunchVerb : public ProgramTest {};

TEST_F(LaunchVerb, StartsRanks) {
  const Finished done =
      run({"launch", "-n", "2", "--", "sh", "-c", "echo I am $RANK of $WORLD_SIZE"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("[0] I am 0 of 2\n"), HasSubstr("[1] I am 1 of 2\n")));
}

TEST_F(LaunchVerb, FlagsBehindTheProgramAreItsOwn) {
  EXPECT_EQ(run({"launch", "--prefix", "off", "--", "echo", "-n", "--ranks", "", "--", "x"}).out,
            "--ranks  -- x");
  // Without "--" as well.
  EXPECT_EQ(run({"launch", "-n", "1", "--prefix=off", "echo", "--ranks", "-n", "--json"}).out,
            "--ranks -n --json\n");
  EXPECT_EQ(run({"launch", "--ranks", "2", "sh", "-c", ":", "--help"}).out, "");
}

TEST_F(LaunchVerb, PassesTheCodeOn) {
  const Finished failed = run({"launch", "-n", "2", "--", "sh", "-c", "exit 7"});
  EXPECT_EQ(failed.code, 7);
  EXPECT_THAT(failed.err, AllOf(StartsWith("trestle: rank "), HasSubstr("ended with code 7")));
}

TEST_F(LaunchVerb, StopsAllBySigterm) {
  Started launcher(folder_, {"launch", "-n", "2", "--", "sh", "-c", "echo ready; exec sleep 60"});
  EXPECT_TRUE(launcher.wait_for("[0] ready"));
  EXPECT_TRUE(launcher.wait_for("[1] ready"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait().code, 143);
}

TEST_F(LaunchVerb, OneThatIsAskedForWhatCannotBe) {
  const auto refusal = [](const std::vector<std::string>& words) {
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << join(words, " ");
    EXPECT_EQ(refused.out, "") << join(words, " ");
    return refused.err;
  };
  EXPECT_THAT(refusal({"launch"}), HasSubstr("no program to start"));
  EXPECT_THAT(refusal({"launch", "-n", "2", "--"}), HasSubstr("trestle launch -n 4 -- "));
  EXPECT_THAT(refusal({"launch", "-n", "2", "no_such_program"}), HasSubstr("'no_such_program'"));
  EXPECT_THAT(refusal({"launch", "--rank", "2", "true"}), HasSubstr("did you mean '--ranks'?"));
  EXPECT_THAT(refusal({"launch", "-n", "0", "true"}), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(refusal({"launch", "-n"}), HasSubstr("--ranks needs a value"));
  EXPECT_THAT(refusal({"launch", "--grace", "10", "true"}),
              AllOf(HasSubstr("--grace"), HasSubstr("'10'"), HasSubstr("10s")));
  EXPECT_THAT(refusal({"launch", "--nodes", "2", "--rendezvous", "a", "true"}),
              HasSubstr("needs --node-rank"));
  EXPECT_THAT(refusal({"launch", "--nodes", "2", "--node-rank", "1", "true"}),
              HasSubstr("--rendezvous HOST"));
  EXPECT_THAT(refusal({"launch", "--rendezvous", "a:0", "true"}), HasSubstr("'a:0'"));
  EXPECT_THAT(refusal({"launch", "--prefix", "on", "--json", "true"}), HasSubstr("no effect"));
}

TEST_F(LaunchVerb, ADryRunPrintsCommandsThatWork) {
  const Finished dry =
      run({"launch", "-n", "2", "--dry-run", "--", "sh", "-c", "echo $RANK 'of' 2"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(run({"-c", dry.out}, {.program = "/bin/sh"}).out, "0 of 2\n1 of 2\n");
}

TEST_F(LaunchVerb, HelpAndCompletionKnowIt) {
  const Finished help = run({"launch", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("PROGRAM ARGUMENTS..."), HasSubstr("--max-restarts"),
                              HasSubstr("trestle launch -n 4 -- ./my_program")));
  EXPECT_EQ(completed({"lau"}), "launch\n");
  EXPECT_EQ(completed({"launch", "--max"}), "--max-restarts\n");
}

}  // namespace
}  // namespace trestle
