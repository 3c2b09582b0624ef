#include "trestle/base/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "trestle/base/error.h"

namespace trestle {
namespace {

using testing::HasSubstr;

struct Entry {
  std::string_view name;
  int value;
};
constexpr std::array entries = {Entry{"gpipe", 1}, Entry{"1f1b", 2}};

std::string message(std::string_view name) {
  try {
    choose("schedule", name, entries);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Choose, FindsAnEntryByName) {
  EXPECT_EQ(choose("schedule", "1f1b", entries).value, 2);
  EXPECT_EQ(&choose("schedule", "gpipe", entries), &entries[0]);
}

TEST(Choose, ListsKnownNamesAndTheNearest) {
  EXPECT_THAT(message("gpip"), HasSubstr("unknown schedule 'gpip'; did you mean 'gpipe'?"));
  EXPECT_THAT(message("gpip"), HasSubstr("Known: gpipe, 1f1b."));
  EXPECT_THAT(message("zebra"), HasSubstr("unknown schedule 'zebra'"));
  EXPECT_THAT(message("zebra"), testing::Not(HasSubstr("did you mean")));
}

TEST(Choose, DidYouMeanIsTheEndOfAMessage) {
  EXPECT_EQ(did_you_mean("trian", {"train", "view"}), "; did you mean 'train'?");
  EXPECT_EQ(did_you_mean("doctor", {"train", "view"}), "");
}

}  // namespace
}  // namespace trestle
