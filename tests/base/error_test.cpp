#include "trestle/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trestle {
namespace {

using testing::HasSubstr;

TEST(Error, KeepsAMessageWithoutPlaceOrHint) { EXPECT_STREQ(Error("it broke").what(), "it broke"); }

TEST(Error, ShowsPlaceAndHint) {
  const Error error("it broke", {.file = "a.toml:3",
                                 .layer = "down1",
                                 .rank = 2,
                                 .stage = 1,
                                 .micro_batch = 0,
                                 .hint = "Mend it."});
  EXPECT_STREQ(
      error.what(),
      "a.toml:3: it broke\n  at: layer 'down1', rank 2, stage 1, micro-batch 0\n  Mend it.");
  EXPECT_EQ(error.where().stage, 1);
  EXPECT_EQ(error.where().layer, "down1");
}

TEST(Error, AppendsContextAndKeepsItInCopies) {
  UsageError error("it broke");
  error.add_context("while reading the table");
  const UsageError copy = error;
  EXPECT_STREQ(copy.what(), "it broke\n  while reading the table");
}

TEST(Error, HasATypeForEachKind) {
  EXPECT_THROW(throw FormatError("x"), FormatError);
  EXPECT_THROW(throw FileError("x"), Error);
  EXPECT_THROW(throw DeadlineError("x"), std::runtime_error);
  try {
    throw StateError("a second backward");
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("second backward"));
  }
}

}  // namespace
}  // namespace trestle
