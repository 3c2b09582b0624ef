#include "trestle/launch/rank_command.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <set>

#include "trestle/base/error.h"
#include "trestle/launch/cores.h"
#include "trestle/launch/exit_status.h"

namespace trestle::launch {
namespace {

using ::testing::HasSubstr;

TEST(RankCommand, EachRankHasTorchrunsVariables) {
  const auto commands =
      rank_commands({.program = "x", .ranks = 2, .nodes = 3, .node_rank = 1, .max_restarts = 5},
                    {"node0", 29400}, 4);
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[1].rank, 3);
  const std::map<std::string, std::string> variables(commands[1].variables.begin(),
                                                     commands[1].variables.end());
  const std::map<std::string, std::string> wanted = {{"RANK", "3"},
                                                     {"WORLD_SIZE", "6"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"LOCAL_WORLD_SIZE", "2"},
                                                     {"GROUP_RANK", "1"},
                                                     {"GROUP_WORLD_SIZE", "3"},
                                                     {"ROLE_NAME", "default"},
                                                     {"ROLE_RANK", "3"},
                                                     {"ROLE_WORLD_SIZE", "6"},
                                                     {"MASTER_ADDR", "node0"},
                                                     {"MASTER_PORT", "29400"},
                                                     {"TORCHELASTIC_RESTART_COUNT", "4"},
                                                     {"TORCHELASTIC_MAX_RESTARTS", "5"},
                                                     {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                     {"TRESTLE_LAUNCH", "1"}};
  for (const auto& [name, value] : wanted) EXPECT_EQ(variables.at(name), value) << name;
}

// A restarted run recognizes by it what the launch started before.
TEST(RankCommand, LaunchKeepsItsIdInAllRestarts) {
  const auto name = [](int rank, int restart) {
    const auto commands = rank_commands({.program = "x", .ranks = 2}, {"node0", 29400}, restart);
    for (const auto& [key, value] : commands[static_cast<std::size_t>(rank)].variables)
      if (key == "TORCHELASTIC_RUN_ID") return value;
    return std::string();
  };
  EXPECT_TRUE(name(0, 0).starts_with("trestle-" + std::to_string(getpid()) + "-"));
  EXPECT_EQ(name(0, 0), name(1, 0));
  EXPECT_EQ(name(0, 0), name(0, 3));
}

TEST(RankCommand, KeepsThreadCountSetByUser) {
  setenv("OMP_NUM_THREADS", "7", 1);
  const auto commands = rank_commands({.program = "x"}, {"node0", 29400}, 0);
  unsetenv("OMP_NUM_THREADS");
  for (const auto& [name, value] : commands[0].variables) EXPECT_NE(name, "OMP_NUM_THREADS");
}

TEST(RankCommand, VariablesReplaceLaunchers) {
  setenv("RANK", "17", 1);
  const auto all = environment_with({{"RANK", "3"}, {"OWN", "a b"}});
  unsetenv("RANK");
  EXPECT_EQ(std::count(all.begin(), all.end(), "RANK=3"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "RANK=17"), 0);
  EXPECT_EQ(std::count(all.begin(), all.end(), "OWN=a b"), 1);
  EXPECT_GT(all.size(), 2u);
}

TEST(RankCommand, ParsesRendezvous) {
  const auto is = [](const std::string& words, const std::string& address, int port) {
    const RendezvousAddress found = parse_rendezvous(words);
    EXPECT_EQ(found.address, address) << words;
    EXPECT_EQ(found.port, port) << words;
  };
  is("node1", "node1", 29500);
  is("node1:1234", "node1", 1234);
  is("10.0.0.1:65535", "10.0.0.1", 65535);
  is("fe80::1", "fe80::1", 29500);
  is("[fe80::1]:80", "fe80::1", 80);
  is("[fe80::1]", "fe80::1", 29500);
  for (const char* wrong : {"", ":", ":80", "node1:", "node1:0", "node1:65536", "node1:8x",
                            "node1:80:1", "[::1", "[::1]80", "[]:80", "tcp://node1", "node 1"})
    EXPECT_THROW(parse_rendezvous(wrong), UsageError) << wrong;
}

TEST(RankCommand, PicksFreePortOnOneMachine) {
  const RendezvousAddress found = rendezvous_of({.program = "x"});
  EXPECT_EQ(found.address, "127.0.0.1");
  EXPECT_GT(found.port, 1023);
}

TEST(RankCommand, RefusesInvalidOptions) {
  const auto refusal = [](const LaunchOptions& options) -> std::string {
    try {
      check_options(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(refusal({.program = "x"}), "taken");
  EXPECT_THAT(refusal({.program = "x", .ranks = 0}), HasSubstr("ranks is 0"));
  EXPECT_THAT(refusal({.program = "x", .ranks = 1001}), HasSubstr("1 to 1000"));
  EXPECT_THAT(refusal({.program = "x", .nodes = 0}), HasSubstr("nodes is 0"));
  EXPECT_THAT(refusal({.program = "x", .nodes = 2, .node_rank = 2, .rendezvous = "a"}),
              HasSubstr("node 2 is not one of 2"));
  EXPECT_THAT(refusal({.program = "x", .nodes = 2}), HasSubstr("--rendezvous"));
  EXPECT_THAT(refusal({.program = "x", .rendezvous = "a:b"}), HasSubstr("'a:b'"));
  EXPECT_THAT(refusal({.program = "x", .max_restarts = -1}), HasSubstr("restarts is -1"));
  EXPECT_THAT(refusal({.program = "x", .grace = std::chrono::milliseconds(-1)}),
              HasSubstr("must not be negative"));
}

TEST(RankCommand, DescribesLaunchAsShellCommands) {
  const std::string lines =
      describe_launch({.program = "sh", .arguments = {"-c", "echo 'a b'"}, .ranks = 2});
  EXPECT_THAT(lines, HasSubstr("env RANK=0 WORLD_SIZE=2 "));
  EXPECT_THAT(lines, HasSubstr(" sh -c 'echo '\\''a b'\\'''\n"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST(Cores, AreSplitIntoNeighbours) {
  std::vector<int> cores(10);
  std::iota(cores.begin(), cores.end(), 3);
  for (int ranks = 1; ranks <= 10; ++ranks) {
    std::vector<int> all;
    std::set<std::size_t> sizes;
    for (const auto& part : split_cores(cores, ranks)) {
      all.insert(all.end(), part.begin(), part.end());
      sizes.insert(part.size());
    }
    EXPECT_EQ(all, cores) << ranks;
    EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1u) << ranks;
  }
  for (const auto& part : split_cores(cores, 11)) EXPECT_TRUE(part.empty());
}

TEST(Cores, AreKnownForThisProcess) { EXPECT_GE(allowed_cores().size(), 1u); }

TEST(ExitStatus, IsDescribedInWords) {
  EXPECT_EQ(describe({.code = 3}), "exited with code 3");
  EXPECT_EQ(describe({.signal = 9}), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(ExitStatus{.signal = 11}.exit_code(), 139);
  EXPECT_EQ(describe_ranks({2}), "rank 2");
  EXPECT_EQ(describe_ranks({0, 1, 3}), "ranks 0, 1, 3");
  EXPECT_EQ(describe_ranks({0, 2, 3, 4, 5, 6, 9}), "ranks 0, 2 to 6, 9");
}

}  // namespace
}  // namespace trestle::launch
