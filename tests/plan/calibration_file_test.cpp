// The machine files of trestle calibrate: their text, who may use them, and the times in their
// tables. tests/train/calibrate_test.cpp measures one.
#include "trestle/plan/machine/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/calibrated_machine.h"
#include "trestle/base/error.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string file_text() { return to_toml(calibrated_machine()); }

std::string changed_file(const std::string& from, const std::string& to) {
  std::string words = file_text();
  const std::size_t at = words.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return words.replace(at, from.size(), to);
}

std::string error_of(const std::string& words) {
  try {
    parse_machine(words, "mine.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CalibrationFiles, AreWrittenAndReadAgain) {
  const std::string words = file_text();
  const Machine again = parse_machine(words, "mine.toml");
  EXPECT_EQ(to_toml(again), words);
  ASSERT_TRUE(again.measured_on);
  EXPECT_EQ(again.measured_on->date, "2026-01-31");
  EXPECT_EQ(again.measured_on->cores, 2);
  EXPECT_EQ(again.optimizers.at(1).name, "adamw");
  EXPECT_EQ(again.optimizers.at(1).seconds_per_byte.spread, 0.25);
  EXPECT_EQ(again.products.at(0).shape, ProductShape::Square);
  EXPECT_EQ(again.messages.at(3).reach, Reach::Between);
  EXPECT_EQ(again.copies.at(0).path, CopyPath::ToHost);
  EXPECT_EQ(again.fixed.kernel_start->value, 1e-6);
  EXPECT_FALSE(again.fixed.context_memory);
}

TEST(CalibrationFiles, BadOnesAreRefusedByKeyAndLine) {
  EXPECT_THAT(error_of(changed_file("date = 2026-01-31", "date = 2026-02-31")),
              HasSubstr("mine.toml:"));
  EXPECT_THAT(error_of(changed_file("date = 2026-01-31", "date = \"today\"")),
              HasSubstr("'date' in [measured_on] must be a day, for example 2026-01-31"));
  EXPECT_THAT(error_of(changed_file("cores = 2", "cores = -2")),
              HasSubstr("'cores' in [measured_on] must be a whole number from 1"));
  EXPECT_THAT(error_of(changed_file("cpu = ", "cpus = ")),
              AllOf(HasSubstr("unknown key 'cpus' in [measured_on]; did you mean 'cpu'?"),
                    HasSubstr("'cpu' in [measured_on] must be a text")));
  EXPECT_THAT(error_of(changed_file("sgd = { value = ", "sgd = { value = -")),
              HasSubstr("'sgd' in [optimizer] is -"));
  EXPECT_THAT(error_of(changed_file("spread = 0.25", "spread = -0.25")),
              HasSubstr("'spread' of 'adamw' in [optimizer] must be a number from 0"));
  EXPECT_THAT(error_of(changed_file("kind = \"all_reduce\"", "kind = \"all_reduces\"")),
              HasSubstr("'kind' in [[message]] must be one of all_reduce, all_gather"));
  EXPECT_THAT(error_of(changed_file("kind = \"all_gather\"", "kind = \"all_reduce\"")),
              HasSubstr("two tables [[message]] have this kind, over, reach and ranks"));
  EXPECT_THAT(error_of(changed_file("rows = [64.0, ", "rows = [")),
              HasSubstr("has 1 sizes in 'rows', 2 times in 'seconds' and 2 in 'spread'"));
  EXPECT_THAT(error_of(changed_file("rows = [64.0, ", "rows = [640.0, ")), HasSubstr("must rise"));
  EXPECT_THAT(error_of(changed_file("seconds = [", "seconds = [-1.0, ")),
              HasSubstr("must be a list of numbers above 0"));
  EXPECT_THAT(error_of(changed_file("[fixed]", "[fixd]")),
              HasSubstr("unknown section [fixd]; did you mean 'fixed'?"));
  EXPECT_THAT(error_of(changed_file("[[copy]]", "[copy]")), HasSubstr("write [[copy]]"));
  EXPECT_THAT(error_of(changed_file("tables = 6", "tables = 7")),
              HasSubstr("is 7, but the file has 6 tables"));
}

// Wherever a file is cut off, it is refused.
TEST(CalibrationFiles, NoTruncatedFileIsAccepted) {
  const std::string words = file_text();
  const std::size_t end = words.find_last_not_of("\n]0123456789.e-, [");
  for (std::size_t size = 1; size < end; size += 7)
    EXPECT_NE(error_of(words.substr(0, size)), "no error") << "cut off at byte " << size;
  EXPECT_THAT(error_of(words.substr(0, words.find("\n[[copy]]"))), HasSubstr("it was cut off"));
}

TEST(CalibrationFiles, AnotherMachineOrVersionIsRefusedWithBothValues) {
  const auto measured = calibrated_machine().measured_on;
  MeasuredOn here = *measured;
  here.date = "2026-05-01";
  EXPECT_NO_THROW(check_measured_on(measured, here, "mine.toml"));
  here.memory *= 1.01;  // another kernel
  EXPECT_NO_THROW(check_measured_on(measured, here, "mine.toml"));
  here.cpu = "Other CPU";
  here.cores = 64;
  here.memory *= 4;
  here.gpu = "1 x GPU";
  here.libtorch = "2.99.0";
  try {
    check_measured_on(measured, here, "mine.toml");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr("mine.toml: was measured on another machine or with another version"),
              HasSubstr("processor: Test CPU there, Other CPU here"),
              HasSubstr("cores: 2 there, 64 here"),
              HasSubstr("memory: 8.0 GiB there, 32.3 GiB here"),
              HasSubstr("GPU: none there, 1 x GPU here"),
              HasSubstr("libtorch: 2.13.0 there, 2.99.0 here"), Not(HasSubstr("trestle: 0"))));
    EXPECT_THAT(error.where().hint, HasSubstr("--for-other-machine"));
  }
  EXPECT_NO_THROW(check_measured_on(measured, here, "mine.toml", OtherMachine::Allow));
  EXPECT_NO_THROW(check_measured_on(std::nullopt, here, "a100-8-per-node"));
}

TEST(CalibrationFiles, ALaterDayIsRefused) {
  const auto measured = calibrated_machine().measured_on;
  MeasuredOn here = *measured;
  here.date = "2025-12-31";
  for (const OtherMachine other : {OtherMachine::Refuse, OtherMachine::Allow}) {
    try {
      check_measured_on(measured, here, "mine.toml", other);
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("'date' in [measured_on] is 2026-01-31, but today is 2025-12-31"));
    }
  }
}

TEST(CalibrationFiles, TablesGiveTimesBetweenAndBeyondTheirSizes) {
  const auto tables = calibrated_machine().messages;
  const auto seconds = [&](double bytes, int ranks, const std::string& over = "gloo") {
    return message_seconds(tables, {.over = over, .ranks = ranks, .bytes = bytes}).value();
  };
  // Two ranks: 10 us for 1,000 bytes and 110 us for 11,000. Four: twice that.
  EXPECT_DOUBLE_EQ(seconds(1, 2), 1e-5);
  EXPECT_DOUBLE_EQ(seconds(6000, 2), 6e-5);
  EXPECT_DOUBLE_EQ(seconds(22'000, 2), 2.2e-4);
  EXPECT_DOUBLE_EQ(seconds(6000, 4), 1.2e-4);
  EXPECT_DOUBLE_EQ(seconds(6000, 3), 9e-5);
  EXPECT_DOUBLE_EQ(seconds(6000, 7), 2.4e-4);  // six other ranks instead of three
  EXPECT_FALSE(message_seconds(tables, {.over = "nccl", .ranks = 2, .bytes = 1}));
  EXPECT_FALSE(
      message_seconds(tables, {.kind = Exchange::Send, .over = "gloo", .ranks = 2, .bytes = 1}));
  EXPECT_DOUBLE_EQ(
      message_seconds(tables, {.over = "gloo", .reach = Reach::Between, .ranks = 2, .bytes = 1})
          .value(),
      1e-3);
}

TEST(CalibrationFiles, FlopsOfProductsAreThoseOfTheirSizes) {
  EXPECT_EQ(flops_of_product(ProductShape::Square, 64), 2.0 * 64 * 64 * 64);
  EXPECT_EQ(flops_of_product(ProductShape::Tall, 1024), 2.0 * 1024 * 64 * 64);
  EXPECT_EQ(flops_of_product(ProductShape::Thin, 256), 2.0 * 256 * 16 * 256);
}

}  // namespace
}  // namespace trestle::plan
