#include <gmock/gmock.h>

#include <fstream>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// `trestle train` on ranks: usage errors and failures.
namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainRanksErrors : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    write_file(folder_ / "tiny.toml", R"([model]
name = "two_linears"
classes = 5
[data]
name = "random"
shape = [10]
count = 200
targets = "normal"
[devices]
use = "cpu"
threads = 1
[pipeline]
balance = [2, 1]
deadline = 3.0
[train]
epochs = 2
batch = 20
save_every = 2
loss = "mean_squared_error"
)");
  }
  static int times(const std::string& words, const std::string& in) {
    int count = 0;
    for (auto at = in.find(words); at != std::string::npos; at = in.find(words, at + 1)) ++count;
    return count;
  }
  // Runs shell commands; $T is the program.
  static Finished shell(const std::string& commands) {
    return run({"-c", "T='" TRESTLE_PROGRAM "'; " + commands}, {.program = "/bin/sh"});
  }
};

TEST_F(TrainRanksErrors, RestartsNeedProcesses) {
  for (const std::string ranks : {"1", "threads:2"}) {
    const Finished done = run({"train", "tiny.toml", "--ranks", ranks, "--max-restarts", "3"});
    EXPECT_EQ(done.code, 2);
    EXPECT_THAT(done.err, HasSubstr("--max-restarts has no effect"));
  }
  EXPECT_EQ(run({"train", "tiny.toml", "--max-restarts", "3"}).code, 2);
  const Finished launched = run(
      {"launch", "-n", "2", "--", TRESTLE_PROGRAM, "train", "tiny.toml", "--max-restarts", "3"});
  EXPECT_EQ(launched.code, 2);
  EXPECT_THAT(launched.err, AllOf(HasSubstr("--max-restarts has no effect: trestle launch started"),
                                  HasSubstr("trestle launch --max-restarts N")));
  EXPECT_EQ(run({"train", "tiny.toml", "--quiet", "--ranks", "2", "--max-restarts", "3"}).code, 0);
}

TEST_F(TrainRanksErrors, OnlyTaskOfLauncherMayStartRanks) {
  const std::string task =
      "SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 ";
  const Finished srun = shell(task + "$T train tiny.toml --ranks 2");
  EXPECT_EQ(srun.code, 0) << srun.err;
  EXPECT_THAT(srun.out, HasSubstr("2 ranks (processes, gloo)"));
  const Finished left_over = shell("RANK=0 WORLD_SIZE=1 $T train tiny.toml --ranks threads:2");
  EXPECT_EQ(left_over.code, 0) << left_over.err;
}

TEST_F(TrainRanksErrors, NamesLeftOverVariables) {
  const Finished done = shell(
      "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29588 $T train tiny.toml --ranks 3");
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, AllOf(HasSubstr("RANK and WORLD_SIZE make this process rank 0 of 2"),
                              HasSubstr("Unset RANK and WORLD_SIZE")));
}

// No rank has met rank 0, which could report the error for all.
TEST_F(TrainRanksErrors, RankReportsMissingRankZero) {
  const Finished alone =
      shell("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29589 $T train tiny.toml");
  EXPECT_EQ(alone.code, 1);
  EXPECT_THAT(alone.err,
              AllOf(HasSubstr("rank 1 could not reach rank 0 at 127.0.0.1:29589 within 3 s"),
                    HasSubstr("MASTER_ADDR and MASTER_PORT")));
}

TEST_F(TrainRanksErrors, RankZeroReportsUnknownAddress) {
  const Finished done = shell(
      "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=no_such_host.invalid "
      "MASTER_PORT=29590 $T train tiny.toml");
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err, AllOf(HasSubstr("trestle: rank 0 cannot reach itself at no_such_host."),
                              HasSubstr("MASTER_ADDR is the name or address"),
                              Not(HasSubstr("c10d")), Not(HasSubstr("frame #"))));
}

// A killed process prints nothing.
TEST_F(TrainRanksErrors, RanksReportKilledRankZero) {
  const Finished done = shell(
      "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29591; "
      "RANK=0 $T train tiny.toml --epochs 100000 --name gone --json > zero.out 2>&1 & zero=$!; "
      "( while ! grep -q step zero.out; do sleep 0.05; done; kill -9 $zero ) & "
      "sleep 0.1; RANK=1 $T train tiny.toml --epochs 100000 --name gone --json");
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err, HasSubstr("rank 0 (process "));
}

TEST_F(TrainRanksErrors, ChangedDeadlineAppliesToRendezvous) {
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "late", "--deadline", "600", "--quiet"}).code, 0);
  const Finished done = shell(
      "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29592 "
      "$T train --resume runs/late --epochs 4 --deadline 1");
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err, HasSubstr("rank 1 of 2 has not arrived at 127.0.0.1:29592 within 1 s"));
}

TEST_F(TrainRanksErrors, VerbsOfOneProcessRefuseRanks) {
  const Finished done =
      run({"launch", "-n", "2", "--", TRESTLE_PROGRAM, "sweep", "tiny.toml", "--out", "swept"});
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, HasSubstr("trestle sweep runs on one process, but trestle launch started"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "swept"));
  EXPECT_EQ(run({"launch", "-n", "2", "--", TRESTLE_PROGRAM, "doctor"}).code, 0);
  // A single process, and a variable that does not matter to it.
  const Finished left_over = shell("RANK=0 $T sweep tiny.toml --dry-run --out swept");
  EXPECT_EQ(left_over.code, 0) << left_over.err;
}

// The exit code is 2 even if another rank ends first.
TEST_F(TrainRanksErrors, UsageErrorIsNotRestarted) {
  for (int time = 0; time < 3; ++time) {
    const Finished done = run({"train", "tiny.toml", "--ranks", "2", "--max-restarts", "2",
                               "--devices", "cuda:62,cuda:63"});
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_THAT(done.err, Not(HasSubstr("Restarting all ranks")));
  }
}

TEST_F(TrainRanksErrors, RestartedSingleRankResumes) {
  const Finished done = run({"launch", "-n", "1", "--max-restarts", "1", "--", "sh", "-c",
                             "'" TRESTLE_PROGRAM "' train tiny.toml --name only --quiet && "
                             "[ $TORCHELASTIC_RESTART_COUNT = 1 ]"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/only/last"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs/only_2"));
}

// As when a scheduler takes that rank's machine away.
TEST_F(TrainRanksErrors, SignalToOneRankStopsAllWithItsExitCode) {
  const Finished done = shell(
      "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29594; "
      "RANK=1 $T train tiny.toml --epochs 100000 --name told --json & one=$!; "
      "( while ! grep -q '\"step\"' runs/told/metrics.jsonl; do sleep 0.05; done; kill -TERM $one "
      ") "
      "2>/dev/null & RANK=0 $T train tiny.toml --epochs 100000 --name told --quiet; "
      "zero=$?; wait $one; echo codes $zero $?");
  EXPECT_THAT(done.out, HasSubstr("codes 143 143")) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("a signal to rank 1 stopped all"),
                              Not(HasSubstr("could not be written"))));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/told/last/index.json"));
}

// A job manager signals all processes, and the launcher passes its signal on: the ranks count it
// once.
TEST_F(TrainRanksErrors, SignalToLauncherAndRanksCountsOnce) {
  const Finished done = shell(
      "$T launch -n 2 -- sh -c 'echo $$ >> numbers; exec '\"$T\"' train tiny.toml --epochs 100000 "
      "--name managed --quiet' & all=$!; "
      "while ! grep -q '\"step\"' runs/managed/metrics.jsonl; do sleep 0.05; done 2>/dev/null; "
      "kill -TERM $(cat numbers) $all; wait $all; echo code $?");
  EXPECT_THAT(done.out, HasSubstr("code 143")) << done.err;
  EXPECT_THAT(done.err, Not(HasSubstr("without a word")));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/managed/last/index.json"));
}

// Ranks that the launcher stops print nothing: the launcher reports all of them in one line.
TEST_F(TrainRanksErrors, LauncherAloneReportsRanksThatItStops) {
  const Finished done = shell(
      "$T launch -n 3 -- sh -c 'if [ $RANK = 0 ]; then exit 3; fi; exec '\"$T\"' train tiny.toml "
      "--name stopped --quiet'; echo code $?");
  EXPECT_THAT(done.out, HasSubstr("code 3")) << done.err;
  EXPECT_EQ(times("ranks 1, 2 stopped after", done.err), 1) << done.err;
  EXPECT_THAT(done.err, Not(HasSubstr("trestle: stopped")));
}

// Each rank in its own folder, as on two machines.
TEST_F(TrainRanksErrors, NamesDifferencesBetweenData) {
  const auto refused = [](const std::string& name, const std::string& change) {
    const Finished done =
        shell("mkdir -p " + name + "/0 && cp -r cars small.toml " + name + "/0 && cp -r " + name +
              "/0 " + name + "/1 && (cd " + name + "/1/cars && " + change +
              ") && "
              "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29593; cd " +
              name +
              "/0; "
              "(cd ../1; RANK=1 $T train small.toml --deadline 20) & "
              "RANK=0 $T train small.toml --deadline 20");
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_THAT(done.err, HasSubstr("the ranks have different data: '"));
    return done.err;
  };
  EXPECT_THAT(
      refused("fewer",
              "for f in $(ls train_hq | head -4); do rm train_hq/$f train_masks/${f%.*}*; done"),
      AllOf(HasSubstr("' on rank 0, '"), HasSubstr(" to train on")));
  refused("others", "for f in */*; do mv $f ${f%/*}/z${f#*/}; done");
}

TEST_F(TrainRanksErrors, PrintsErrorOfAllRanksOnce) {
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "cut", "--ranks", "2", "--quiet"}).code, 0);
  std::filesystem::remove(folder_ / "runs/cut/last/weights.rank1.safetensors");
  const Finished missing =
      run({"train", "--resume", "runs/cut", "--ranks", "2", "--epochs", "3", "--quiet"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(times("this file of the checkpoint is missing", missing.err), 1) << missing.err;
  EXPECT_EQ(times("on rank ", missing.err), 1) << missing.err;

  // Without libtorch's stack.
  const Finished full =
      run({"train", "small.toml", "--ranks", "2", "--devices", "virtual:2x20KiB"});
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(times("is out of memory", full.err), 1) << full.err;
  EXPECT_THAT(full.err, Not(HasSubstr("frame #")));

  const Finished lost = run({"train", "tiny.toml", "--ranks", "2"}, {.out = "/dev/full"});
  EXPECT_EQ(lost.code, 1);
  EXPECT_EQ(times("the output could not be written", lost.err), 1) << lost.err;

  const Finished refused = run({"train", "tiny.toml", "--ranks", "2", "--devices", "virtual:1"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(times("both use virtual:0", refused.err), 1) << refused.err;
}

TEST_F(TrainRanksErrors, PrintsErrorOfOneRankOnceWithItsNumber) {
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "bad", "--ranks", "2", "--quiet"}).code, 0);
  const auto file = folder_ / "runs/bad/last/weights.rank1.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);
  for (const std::string ranks : {"2", "threads:2"}) {
    const Finished done =
        run({"train", "--resume", "runs/bad", "--ranks", ranks, "--epochs", "3", "--quiet"});
    EXPECT_EQ(done.code, 1);
    EXPECT_EQ(times("differs from the saved one", done.err), 1) << done.err;
    EXPECT_THAT(done.err, AllOf(HasSubstr("on rank 1"), Not(HasSubstr("on rank 0"))));
  }
  // Ranks on two simulated machines: the first machine's terminal shows the error too.
  const Finished done = shell(
      "run() { RANK=$1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=29595 $T train --resume runs/bad --epochs 3 --quiet 2>$1.err; }; "
      "run 1 & run 0; wait; cat 0.err");
  EXPECT_EQ(times("differs from the saved one", done.out), 1) << done.out;
  EXPECT_THAT(done.out, AllOf(HasSubstr("on rank 1"), Not(HasSubstr("\n  on rank 0"))));
}

TEST_F(TrainRanksErrors, OneRankReportsKilledRank) {
  const Finished done = shell(
      "$T train tiny.toml --ranks 3 --balance 1,1,1 --epochs 100000 --name killed --json >k.out & "
      "all=$!; while ! grep -q step k.out; do sleep 0.05; done; "
      "kill -9 $(pgrep -P $all | tail -1); wait $all; echo code $?");
  EXPECT_THAT(done.out, HasSubstr("code 137"));
  EXPECT_EQ(times("exited without an error message", done.err), 1) << done.err;
}

TEST_F(TrainRanksErrors, NothingToResumeIsNotRestarted) {
  std::filesystem::create_directories(folder_ / "runs/unsaved");
  write_file(folder_ / "runs/unsaved/recipe.toml", read_file(folder_ / "tiny.toml"));
  for (const std::string more : {"", " --ranks 2 --max-restarts 2"}) {
    const Finished done = shell("$T train --resume runs/unsaved" + more);
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(times("has no checkpoint to resume", done.err), 1) << done.err;
  }
}

// As on two machines without a shared file system: detected before the first save.
TEST_F(TrainRanksErrors, RanksWithDifferentFoldersAreRefusedAtOnce) {
  const auto refused = [](const std::string& command, const char* flag) {
    const Finished done = shell(
        "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29596 T; "
        "(cd apart/1; RANK=1 $T train " +
        command + " --quiet --deadline 20) & cd apart/0; RANK=0 $T train " + command +
        " --quiet --deadline 20; code=$?; wait; exit $code");
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_THAT(done.err, HasSubstr("rank 1 does not see this folder as rank 0 does"));
    EXPECT_THAT(done.err, HasSubstr(text("give one, with ", flag, ",")));
  };
  for (const std::string rank : {"0", "1"}) {
    std::filesystem::create_directories(folder_ / "apart" / rank / "runs/tiny");
    std::filesystem::copy(folder_ / "tiny.toml", folder_ / "apart" / rank / "tiny.toml");
  }
  refused("tiny.toml --epochs 100000", "--runs");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "apart/0/runs/tiny_2"));
  // Also for copies of a run, one of which may be older.
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "copied", "--quiet"}).code, 0);
  for (const std::string rank : {"0", "1"})
    std::filesystem::copy(folder_ / "runs/copied", folder_ / "apart" / rank / "runs/copied",
                          std::filesystem::copy_options::recursive);
  refused("--resume runs/copied --epochs 100000", "--resume");
}

TEST_F(TrainRanksErrors, QuotesResumeCommandForShell) {
  const Finished done = run({"train", "tiny.toml", "--name", "it's mine", "--ranks", "2"});
  ASSERT_EQ(done.code, 0) << done.err;
  const std::string words = "trestle train --resume ";
  const auto at = done.out.find(words);
  ASSERT_NE(at, std::string::npos) << done.out;
  const std::string rest = done.out.substr(at + words.size());
  EXPECT_EQ(rest.substr(0, rest.find(" --epochs")), "'runs/it'\\''s mine'");
}

TEST_F(TrainRanksErrors, NamesFolderThatCannotBeCreated) {
  const Finished done = run({"train", "tiny.toml", "--runs", "/proc", "--ranks", "2"});
  EXPECT_EQ(done.code, 1);
  EXPECT_EQ(times("/proc/tiny: cannot create the run's folder", done.err), 1) << done.err;
}

// An edited index has this step; the learning-rate schedule would iterate up to it.
TEST_F(TrainRanksErrors, RefusesStepOutsideEpoch) {
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "far", "--quiet"}).code, 0);
  const Finished done = shell(
      "sed -i '0,/\"step\": *[0-9]*/s//\"step\": 100000000000000000/' runs/far/last/index.json; "
      "timeout 20 $T train --resume runs/far --epochs 9 --ranks 2 --quiet");
  EXPECT_EQ(done.code, 1);
  EXPECT_EQ(times("the run stands at step 100000000000000000 after 2 epochs", done.err), 1)
      << done.err;
}

// Two trainings in one launch: a restart resumes each training's own run.
TEST_F(TrainRanksErrors, EachTrainingOfLaunchResumesItsOwnRun) {
  const Finished done =
      run({"launch", "-n", "2", "--max-restarts", "1", "--", "sh", "-c",
           "'" TRESTLE_PROGRAM
           "' train tiny.toml --name first --max-steps 5 --quiet && '" TRESTLE_PROGRAM
           "' train tiny.toml --name second --max-steps 7 --quiet && [ $TORCHELASTIC_RESTART_COUNT "
           "= 1 ]"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs/first_2"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs/second_2"));
  const auto steps = [&](const std::string& name) {
    std::ifstream file(folder_ / "runs" / name / "metrics.jsonl");
    std::string line;
    int count = 0;
    while (std::getline(file, line)) count += line.starts_with("{\"step\"") ? 1 : 0;
    return count;
  };
  EXPECT_EQ(steps("first"), 5);
  EXPECT_EQ(steps("second"), 7);
}

}  // namespace
}  // namespace trestle
