// `trestle plan` as a user types it. tests/plan/search_test.cpp has the search itself.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanVerb : public ProgramTest {
 protected:
  // The installed profile is not there: the source's.
  static std::vector<std::string> words(const std::string& gpt,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "plan", "--gpt", gpt, "--machine",
        std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

const std::string billions_39 = "layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200";

TEST_F(PlanVerb, PinnedDegreesGiveOnePredictedTime) {
  const Finished done =
      run(words(billions_39, {"--devices", "512", "--batch", "1536", "--keep",
                              "tensor=8,pipeline=2,micro_batch=4,recompute=all", "--json"}));
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_NEAR(json["predicted_step_seconds"].get<double>(), 14.45, 0.12 * 14.45);
  EXPECT_EQ(json["strategy"]["data"], 32);
}

TEST_F(PlanVerb, PrintsATableAndReasons) {
  const Finished done = run(words(billions_39, {"--devices", "64", "--batch", "64", "--top", "2"}));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("GPT of 39.1 billion parameters"), HasSubstr("2 lost: "),
                              HasSubstr("does not fit: "), HasSubstr("not legal: ")));
}

TEST_F(PlanVerb, NothingFitsNamesTheLeast) {
  const Finished done = run(words(billions_39, {"--devices", "2", "--batch", "64"}));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("None of "), HasSubstr("least memory: "),
                              HasSubstr("least devices: ")));
}

TEST_F(PlanVerb, ExplainsAndDrawsAPlan) {
  const std::vector<std::string> degrees = {
      "--devices",           "16",        "--batch", "32",    "--keep",
      "tensor=8,pipeline=2", "--explain", "2",       "--svg", "plan.svg"};
  const Finished done = run(words(billions_39, degrees));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("\n2  tensor 8 · pipeline 2"), HasSubstr("\nstage 1 · "),
                    HasSubstr("times forward"), HasSubstr("rank 1"), HasSubstr("wrote plan.svg")));
  EXPECT_THAT(read_file(folder_ / "plan.svg"), HasSubstr("<svg"));
  EXPECT_EQ(run(words(billions_39, degrees)).code, 2);  // no --overwrite
  EXPECT_THAT(
      run(words(billions_39, {"--devices", "16", "--batch", "32", "--top", "1", "--explain", "2"}))
          .err,
      HasSubstr("there is no plan 2, only 1 plan"));
}

TEST_F(PlanVerb, RefusesWhatCannotBe) {
  const auto refusal = [](const std::vector<std::string>& more) {
    const Finished done = run(words(billions_39, more));
    EXPECT_EQ(done.code, 2) << join(more, " ");
    return done.err;
  };
  EXPECT_THAT(refusal({"--devices", "512", "--batch", "1536", "--keep", "tensor=8,pipeline=3"}),
              AllOf(HasSubstr("do not divide 512 devices"), HasSubstr("384 and 576 devices")));
  EXPECT_THAT(refusal({"--devices", "0", "--batch", "8"}), HasSubstr("--devices"));
  EXPECT_THAT(refusal({"--devices", "8", "--batch", "8", "--memory", "lots"}), HasSubstr("lots"));
  EXPECT_THAT(refusal({"--devices", "8", "--batch", "8", "--goal", "money"}),
              HasSubstr("has no price"));
  EXPECT_THAT(run({"plan", "--gpt", "layers=4", "--devices", "8", "--batch", "8"}).err,
              HasSubstr("no hidden"));
  write_file(folder_ / "bad.toml", "[machine]\nname = 3\n");
  EXPECT_THAT(
      run({"plan", "--gpt", billions_39, "--machine", "bad.toml", "--devices", "8", "--batch", "8"})
          .err,
      HasSubstr("bad.toml:2: 'name' in [machine] must be a text"));
}

}  // namespace
}  // namespace trestle
