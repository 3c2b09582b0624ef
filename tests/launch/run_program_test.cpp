#include "trestle/launch/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"

namespace trestle::launch {
namespace {

using testing::HasSubstr;

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

TEST(RunProgram, ReturnsOutputErrorsAndCode) {
  const auto end = run_program(shell("cat; echo out; echo wrong >&2; exit 3"));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->output, "out\n");
  EXPECT_EQ(end->errors, "wrong\n");
  EXPECT_EQ(end->status.code, 3);
  EXPECT_EQ(run_program(shell("kill -9 $$"))->status.signal, SIGKILL);
}

TEST(RunProgram, ReadsMoreThanAPipeHolds) {
  const auto end = run_program(shell("head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2"));
  EXPECT_EQ(end->output.size(), 300000U);
  EXPECT_EQ(end->errors.size(), 200000U);
}

TEST(RunProgram, NamesAProgramThatDoesNotExist) {
  try {
    run_program({"/no/such/program"});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/program"));
    EXPECT_THAT(error.what(), HasSubstr("cannot be started"));
  }
}

TEST(RunProgram, StopsAtTheNextQuestion) {
  int asked = 0;
  const Stopwatch watch;
  EXPECT_FALSE(run_program(shell("exec sleep 60"), [&] { return ++asked == 2; }));
  EXPECT_LT(watch.seconds(), 20);
}

// A program that ignores SIGTERM is killed, with what it has started.
TEST(RunProgram, KillsTheGroupOfAProgramThatDoesNotStop) {
  int asked = 0;
  const Stopwatch watch;
  EXPECT_FALSE(
      run_program(shell("trap '' TERM; sleep 60 & wait; sleep 60"), [&] { return ++asked == 3; }));
  EXPECT_LT(watch.seconds(), 30);
}

}  // namespace
}  // namespace trestle::launch
