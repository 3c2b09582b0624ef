#include "trestle/launch/launcher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/launch/started_launcher.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/launch/cores.h"

namespace trestle::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

fs::path scratch(const std::string& name) {
  const fs::path folder =
      fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("launcher_test_", getpid()) / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(Launcher, PrefixesLinesWithRank) {
  const Outcome outcome =
      run_launcher(on_ranks(3, "echo out $RANK; echo err $RANK >&2; printf 'no end'"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[0] out 0", "[1] out 1", "[2] out 2", "[0] no end",
                                   "[1] no end", "[2] no end"));
  EXPECT_THAT(lines_of(outcome.err), UnorderedElementsAre("[0] err 0", "[1] err 1", "[2] err 2"));
}

TEST(Launcher, GivesRanksTheirEnvironment) {
  const Outcome outcome = run_launcher({"-n", "2", "--", LAUNCH_HELPER, "who"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  Words lines = lines_of(outcome.out);
  std::sort(lines.begin(), lines.end());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("[0] trestle launch rank 0/2 local 0/2 node 0 at 127.0.0.1:"));
  EXPECT_THAT(lines[1], HasSubstr("[1] trestle launch rank 1/2 local 1/2 node 0 at 127.0.0.1:"));
  EXPECT_THAT(lines[1], HasSubstr("restart 0 store 0"));
  const auto port = [](const std::string& line) { return line.substr(line.find(".1:") + 3, 5); };
  EXPECT_EQ(port(lines[0]), port(lines[1]));
}

TEST(Launcher, SplitsCoresAmongRanks) {
  const std::vector<int> cores = allowed_cores();
  ASSERT_GE(cores.size(), 2u);
  const Outcome outcome = run_launcher({"-n", "2", "--", LAUNCH_HELPER, "who"});
  std::multiset<std::string> used;
  for (const std::string& line : lines_of(outcome.out)) {
    EXPECT_THAT(line, HasSubstr(text(" threads ", cores.size() / 2, " ")));
    for (const std::string& core : split(line.substr(line.rfind(' ') + 1), ',')) used.insert(core);
  }
  EXPECT_EQ(used.size(), cores.size()) << outcome.out;
  for (const int core : cores) EXPECT_EQ(used.count(text(core)), 1u) << outcome.out;
}

TEST(Launcher, SharesCoresAmongManyOrUnboundRanks) {
  const std::vector<int> cores = allowed_cores();
  const int many = static_cast<int>(cores.size()) + 1;
  const Outcome crowded = run_launcher({"-n", text(many), "--", LAUNCH_HELPER, "who"});
  EXPECT_EQ(count_of(text(" threads 1 cores ", join(cores, ","), "\n"), crowded.out), many)
      << crowded.out;
  const Outcome unbound = run_launcher({"-n", "2", "--unbound", "--", LAUNCH_HELPER, "who"});
  EXPECT_EQ(count_of(text(" cores ", join(cores, ","), "\n"), unbound.out), 2) << unbound.out;
}

TEST(Launcher, RunsTwoNodesOnOneMachine) {
  const auto node = [](const char* number) {
    return Words{"-n",           "2",   "--nodes", "2",           "--node-rank", number,
                 "--rendezvous", "box", "--",      LAUNCH_HELPER, "who"};
  };
  StartedLauncher zero(node("0")), one(node("1"));
  const std::string all = zero.wait().out + one.wait().out;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(all, HasSubstr(text("[", rank, "] trestle launch rank ", rank, "/4 local ",
                                    rank % 2, "/2 node ", rank / 2, " at box:29500 ")));
}

TEST(Launcher, KeepsManyLinesWholeAndInOrder) {
  constexpr int lines = 50'000, ranks = 4;
  const Outcome outcome = run_launcher(on_ranks(ranks, text("seq -f 'line %.0f of many' ", lines)));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<int> next(ranks, 1);
  for (const std::string& line : lines_of(outcome.out)) {
    const int rank = line.at(1) - '0';
    ASSERT_EQ(line,
              text("[", rank, "] line ", next.at(static_cast<std::size_t>(rank)), " of many"));
    ++next[static_cast<std::size_t>(rank)];
  }
  for (const int behind_last : next) EXPECT_EQ(behind_last, lines + 1);
}

TEST(Launcher, LeavesPlainOutputUnchanged) {
  const Outcome outcome = run_launcher(on_ranks(2, "echo out $RANK", {"--plain"}));
  EXPECT_THAT(lines_of(outcome.out), UnorderedElementsAre("out 0", "out 1"));
}

TEST(Launcher, WritesOneLogFilePerRank) {
  const fs::path folder = scratch("logs") / "deep";
  const Outcome outcome =
      run_launcher(on_ranks(2, "echo out $RANK; echo err >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ]",
                            {"--log-folder", folder.string(), "--max-restarts", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(read_file(folder / "rank_1.log"), "out 1\nerr\nout 1\nerr\n");
  write_file(folder / "file", "");
  EXPECT_THAT(
      run_launcher(on_ranks(1, "true", {"--log-folder", (folder / "file" / "x").string()})).err,
      HasSubstr("file/x"));
}

TEST(Launcher, RankZeroReadsStandardInput) {
  const fs::path folder = scratch("in");
  write_file(folder / "in", "some words\n");
  const Outcome outcome =
      run_launcher(on_ranks(2, "cat; echo end"), {.in = (folder / "in").string()});
  EXPECT_THAT(lines_of(outcome.out), UnorderedElementsAre("[0] some words", "[0] end", "[1] end"));
}

TEST(Launcher, PrintsEventsAsJson) {
  const Outcome outcome = run_launcher(on_ranks(
      2, "printf 'a \\377 b\\n'; echo err >&2; exit $RANK", {"--json", "--notice-ms", "50"}));
  EXPECT_EQ(outcome.code, 1);
  std::multiset<std::string> kinds;
  for (const std::string& line : lines_of(outcome.out)) {
    const auto event = nlohmann::json::parse(line);
    kinds.insert(event.at("event").get<std::string>());
    if (event.at("event") == "line" && event.at("stream") == "stdout") {
      EXPECT_EQ(event.at("text"), "a \xEF\xBF\xBD b");
    }
    if (event.at("event") == "end") {
      EXPECT_EQ(event.at("code"), event.at("rank"));
    }
    if (event.at("event") == "done") {
      EXPECT_EQ(event.at("code"), 1);
      EXPECT_THAT(event.at("message").get<std::string>(), HasSubstr("rank 1 "));
    }
  }
  EXPECT_EQ(kinds, (std::multiset<std::string>{"start", "start", "line", "line", "line", "line",
                                               "end", "end", "done"}));
}

TEST(Launcher, RefusesMissingPrograms) {
  const fs::path folder = scratch("programs");
  const auto refusal = [](const std::string& program) {
    const Outcome outcome = run_launcher({"-n", "2", "--", program});
    EXPECT_EQ(outcome.code, 2) << program;
    return outcome.err;
  };
  EXPECT_THAT(refusal("no_such_program"), HasSubstr("'no_such_program' in PATH"));
  EXPECT_THAT(refusal((folder / "missing").string()),
              AllOf(HasSubstr("programs/missing"), HasSubstr("No such file")));
  EXPECT_THAT(refusal(folder.string()), HasSubstr("is a folder"));
  EXPECT_THAT(refusal(""), HasSubstr("no program"));
  write_file(folder / "text", "echo hello\n");
  EXPECT_THAT(refusal((folder / "text").string()), HasSubstr("chmod +x"));
  chmod((folder / "text").c_str(), 0700);
  EXPECT_THAT(refusal((folder / "text").string()),
              AllOf(HasSubstr("cannot be started: Exec format error"), HasSubstr("#!/bin/sh")));
  write_file(folder / "lost", "#!/no/such/shell\n");
  chmod((folder / "lost").c_str(), 0700);
  EXPECT_THAT(refusal((folder / "lost").string()), HasSubstr("cannot be started: No such file"));
}

TEST(Launcher, ClosedReaderEndsWriters) {
  const Outcome outcome = run_launcher(
      {text(LAUNCH_HELPER, " -n 2 --notice-ms 50 -- yes | head -n 3; echo ${PIPESTATUS[0]} >&2")},
      {.program = {"/bin/bash", "-c"}});
  EXPECT_EQ(lines_of(outcome.out).size(), 3u);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("141\n"), HasSubstr("(SIGPIPE)")));
}

TEST(Launcher, ReportsClosedOutput) {
  const Outcome outcome = run_launcher(on_ranks(1, "echo word; sleep 0.2"), {.out = "closed"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the output could not be written"));
  const Outcome both = run_launcher(on_ranks(1, "echo word; sleep 0.2; echo more >&2"),
                                    {.out = "closed", .err = "closed"});
  EXPECT_EQ(both.code, 1);
}

TEST(Launcher, ReportsFullDisk) {
  const Outcome outcome = run_launcher(on_ranks(1, "echo word; sleep 0.2"), {.out = "/dev/full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("No space left"));
}

TEST(Launcher, WorksWithoutStandardStreams) {
  const Outcome outcome = run_launcher(on_ranks(2, "echo word >/dev/null"),
                                       {.in = "closed", .out = "closed", .err = "closed"});
  EXPECT_EQ(outcome.code, 0);
}

}  // namespace
}  // namespace trestle::launch
