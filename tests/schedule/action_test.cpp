#include "trestle/schedule/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"

namespace trestle::schedule {
namespace {

struct Spelling {
  std::string text;
  Action action;
};

class ActionText : public testing::TestWithParam<Spelling> {};

TEST_P(ActionText, RoundTrips) {
  EXPECT_EQ(to_string(GetParam().action), GetParam().text);
  EXPECT_EQ(parse_action(GetParam().text), GetParam().action);
}

constexpr Action make(Kind kind, int stage, int micro_batch = -1, int route = -1, int threads = 0) {
  return {.kind = kind,
          .threads = static_cast<std::uint8_t>(threads),
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = micro_batch,
          .route = static_cast<std::int16_t>(route)};
}

INSTANTIATE_TEST_SUITE_P(
    PyTorchs, ActionText,
    testing::Values(Spelling{"2F0", forward(2, 0)}, Spelling{"1B3", backward(1, 3)},
                    Spelling{"1I3", input_grad(1, 3)}, Spelling{"0W3", weight_grad(0, 3)},
                    Spelling{"2UNSHARD", make(Kind::Unshard, 2)},
                    Spelling{"2RESHARD", make(Kind::Reshard, 2)},
                    Spelling{"0REDUCE_GRAD", make(Kind::ReduceGrad, 0)},
                    Spelling{"2SEND_F0", make(Kind::SendActivation, 2, 0)},
                    Spelling{"3RECV_F0", make(Kind::RecvActivation, 3, 0)},
                    Spelling{"3SEND_B12", make(Kind::SendGradient, 3, 12)},
                    Spelling{"2RECV_B12", make(Kind::RecvGradient, 2, 12)},
                    Spelling{"(0F3;1B2)OVERLAP_F_B", Action{.kind = Kind::OverlapForwardBackward,
                                                            .stage = 0,
                                                            .micro_batch = 3,
                                                            .partner_stage = 1,
                                                            .partner_micro_batch = 2}}));

INSTANTIATE_TEST_SUITE_P(
    Ours, ActionText,
    testing::Values(Spelling{"1R3", make(Kind::Recompute, 1, 3)},
                    Spelling{"0SEND_SKIP2:r1", make(Kind::SendSkip, 0, 2, 1)},
                    Spelling{"3RECV_SKIP2:r1", make(Kind::RecvSkip, 3, 2, 1)},
                    Spelling{"3SEND_SKIP_B2:r0", make(Kind::SendSkipGradient, 3, 2, 0)},
                    Spelling{"0RECV_SKIP_B2:r10", make(Kind::RecvSkipGradient, 0, 2, 10)},
                    Spelling{"1NORM", make(Kind::Norm, 1)}, Spelling{"1STEP", make(Kind::Step, 1)},
                    Spelling{"2F0@2", make(Kind::Forward, 2, 0, -1, 2)},
                    Spelling{"0SEND_SKIP2:r1@255", make(Kind::SendSkip, 0, 2, 1, 255)}));

class NoAction : public testing::TestWithParam<const char*> {};

TEST_P(NoAction, IsRejected) {
  try {
    parse_action(GetParam());
    FAIL() << "parsed as an action: " << GetParam();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("not a schedule action"));
    EXPECT_THAT(error.what(), testing::HasSubstr("2F0"));
  }
}

INSTANTIATE_TEST_SUITE_P(Texts, NoAction,
                         testing::Values("", "F0", "2", "2F", "2F-1", "-1F0", "2X0", "2F0 ", " 2F0",
                                         "2F0x", "2UNSHARD0", "2SEND_SKIP0", "2SEND_SKIP0:1",
                                         "2F0:r1", "2F0@", "2F0@0", "2F0@256", "40000F0",
                                         "2F99999999999", "2f0", "(0F3;1B2)",
                                         "(0F3;1F2)OVERLAP_F_B", "(0F3,1B2)OVERLAP_F_B", "0F3;1B2",
                                         "2F2147483647"));

TEST(Action, ClassifiesKinds) {
  EXPECT_TRUE(is_compute(Kind::Recompute));
  EXPECT_TRUE(is_compute(Kind::OverlapForwardBackward));
  EXPECT_FALSE(is_compute(Kind::Step));
  EXPECT_FALSE(is_compute(Kind::SendActivation));
  for (const Kind kind :
       {Kind::SendActivation, Kind::SendGradient, Kind::SendSkip, Kind::SendSkipGradient}) {
    EXPECT_TRUE(is_send(kind));
    EXPECT_FALSE(is_receive(kind));
  }
  for (const Kind kind :
       {Kind::RecvActivation, Kind::RecvGradient, Kind::RecvSkip, Kind::RecvSkipGradient}) {
    EXPECT_TRUE(is_receive(kind));
    EXPECT_FALSE(is_send(kind));
  }
}

TEST(Action, RejectsUnknownKinds) {
  EXPECT_THROW(to_string(make(static_cast<Kind>(200), 0)), UsageError);
}

}  // namespace
}  // namespace trestle::schedule
