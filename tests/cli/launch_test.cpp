// `trestle launch`: tests of the verb. tests/launch covers the library.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LaunchVerb : public ProgramTest {};

TEST_F(LaunchVerb, StartsRanks) {
  const Finished done =
      run({"launch", "-n", "2", "--", "sh", "-c", "echo I am $RANK of $WORLD_SIZE"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("[0] I am 0 of 2\n"), HasSubstr("[1] I am 1 of 2\n")));
}

TEST_F(LaunchVerb, PassesFlagsAfterProgramToProgram) {
  EXPECT_EQ(run({"launch", "--prefix", "off", "--", "echo", "-n", "--ranks", "", "--", "x"}).out,
            "--ranks  -- x");
  // Without "--" too.
  EXPECT_EQ(run({"launch", "-n", "1", "--prefix=off", "echo", "--ranks", "-n", "--json"}).out,
            "--ranks -n --json\n");
  EXPECT_EQ(run({"launch", "--ranks", "2", "sh", "-c", ":", "--help"}).out, "");
}

TEST_F(LaunchVerb, ReturnsExitCodeOfRank) {
  const Finished failed = run({"launch", "-n", "2", "--", "sh", "-c", "exit 7"});
  EXPECT_EQ(failed.code, 7);
  EXPECT_THAT(failed.err, AllOf(StartsWith("trestle: rank "), HasSubstr("exited with code 7")));
}

// Output that is the same on all ranks appears once.
TEST_F(LaunchVerb, OneRankPrintsHelpAndPlans) {
  const auto count = [](const std::string& words, const std::string& in) {
    int found = 0;
    for (auto at = in.find(words); at != std::string::npos; at = in.find(words, at + 1)) ++found;
    return found;
  };
  const auto launched = [](std::vector<std::string> words) {
    std::vector<std::string> all = {"launch", "-n", "3", "--", TRESTLE_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    return run(all);
  };
  const Finished plan = launched({"train", "small.toml", "--dry-run"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(count("[0] ", plan.out),
            static_cast<int>(std::count(plan.out.begin(), plan.out.end(), '\n')));
  EXPECT_GT(count("[0] ", plan.out), 3);
  const std::vector<std::vector<std::string>> helps = {
      {"train", "--help"}, {"--help"}, {"--version"}};
  for (const auto& words : helps) {
    const Finished help = launched(words);
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_GT(count("[0] ", help.out), 0) << help.out;
    EXPECT_EQ(count("\n[1] ", "\n" + help.out) + count("\n[2] ", "\n" + help.out), 0) << help.out;
  }
}

TEST_F(LaunchVerb, PrintsErrorOfAllRanksOnce) {
  write_file(folder_ / "wrong.toml", "[model]\nnname = 3\n");
  const std::vector<std::vector<std::string>> mistakes = {
      {"train", "wrong.toml"},
      {"train", "missing.toml"},
      {"train", "small.toml", "--dry-run", "--ranks", "2"},
      {"train", "--bogus"},
      {"trian"},
      {"train", "small.toml", "--ranks", "4"},
      {"sweep", "small.toml", "--out", "x"},
      {"evaluate", "runs/none"},
      {"view", "small.toml", "--split"},
      {"train", "small.toml", "--devices", "cuda:62"}};
  for (const auto& words : mistakes) {
    std::vector<std::string> all = {"launch", "-n", "3", "--prefix", "off", "--", TRESTLE_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    const Finished refused = run(all);
    EXPECT_EQ(refused.code, 2) << join(words, " ");
    EXPECT_EQ(refused.err.rfind("trestle: "), 0U) << join(words, " ") << "\n" << refused.err;
  }
  // Ranks started by hand may have different arguments, so each prints its error.
  const Finished other =
      run({"-c", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29595 '" TRESTLE_PROGRAM
                 "' train missing.toml"},
          {.program = "/bin/sh"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("missing.toml: no such recipe"));
}

TEST_F(LaunchVerb, StopsAllRanksOnSigterm) {
  Started launcher(folder_, {"launch", "-n", "2", "--", "sh", "-c", "echo ready; exec sleep 60"});
  EXPECT_TRUE(launcher.wait_for("[0] ready"));
  EXPECT_TRUE(launcher.wait_for("[1] ready"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait().code, 143);
}

TEST_F(LaunchVerb, RefusesInvalidRequests) {
  const auto refusal = [](const std::vector<std::string>& words) {
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << join(words, " ");
    const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
    EXPECT_THAT(refused.out, json ? ::testing::Matcher<std::string>(HasSubstr("{\"error\":"))
                                  : ::testing::Matcher<std::string>(""))
        << join(words, " ");
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

TEST_F(LaunchVerb, DryRunPrintsWorkingCommands) {
  const Finished dry =
      run({"launch", "-n", "2", "--dry-run", "--", "sh", "-c", "echo $RANK 'of' 2"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(run({"-c", dry.out}, {.program = "/bin/sh"}).out, "0 of 2\n1 of 2\n");
}

TEST_F(LaunchVerb, TakesTorchrunsSpelling) {
  const Finished dry = run({"launch", "--nnodes", "2", "--node_rank", "1", "--rendezvous", "node0",
                            "--dry-run", "--", "true"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, AllOf(HasSubstr("RANK=1"), HasSubstr("WORLD_SIZE=2")));
}

TEST_F(LaunchVerb, IsInHelpAndCompletion) {
  const Finished help = run({"launch", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("PROGRAM ARGUMENTS..."), HasSubstr("--max-restarts"),
                              HasSubstr("trestle launch -n 4 -- ./my_program")));
  EXPECT_EQ(completed({"lau"}), "launch\n");
  EXPECT_EQ(completed({"launch", "--max"}), "--max-restarts\n");
}

}  // namespace
}  // namespace trestle
