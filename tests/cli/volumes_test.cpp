#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// The verbs on a 3-D U-Net and volumes.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const volumes_recipe = R"([model]
name = "unet3d"
classes = 3
width = 4
depth = 2
pooling = ["1x2x2", "2x2x2"]

[data]
name = "volumes"
images = "scans/volumes"
masks = "scans/labels"
patch = [8, 16, 16]
patches_per_volume = 4
workers = 1

[devices]
use = "virtual:2"

[pipeline]
balance = [3, 9]
micro_batches = 2

[optimizer]
learning_rate = 0.01

[train]
epochs = 2
batch = 4
)";

class VolumesVerb : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    write_file(folder_ / "volumes.toml", volumes_recipe);
    const Finished made = run({"data", "synthesize", "volumes", "--count", "5", "--out", "scans",
                               "--depth", "10", "--height", "40", "--width", "20"});
    ASSERT_EQ(made.code, 0) << made.err;
    const Finished trained = run({"train", "volumes.toml", "--quiet"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  // The bytes of the mask that `predict` writes with these flags.
  static std::string mask_with(const std::string& out, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {
        "predict", "runs/volumes", "--images", "scans/volumes/scan_002.nii.gz", "--out", out};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return read_file(folder_ / out / "scan_002_mask.nii.gz");
  }
  static json json_of(const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return json::parse(done.out);
  }
  // The last line of `train --json` that is this event.
  static json event_of(const std::vector<std::string>& words, const std::string& event) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    json found;
    for (const std::string& line : split(done.out, '\n')) {
      if (line.empty()) continue;
      json parsed = json::parse(line);
      if (parsed["event"] == event) found = std::move(parsed);
    }
    return found;
  }
  // The bytes of the devices' meters in a training with this cut.
  static std::vector<double> measured_peaks(const std::string& balance) {
    const json done = event_of(
        {"train", "volumes.toml", "--json", "--name", "measured", "--balance", balance}, "done");
    std::vector<double> peaks;
    for (const json& device : done["peaks"]) peaks.push_back(device["peak_bytes"]);
    return peaks;
  }
};

TEST_F(VolumesVerb, PredictTakesOverlapAndBlend) {
  const std::string own = mask_with("own", {});
  EXPECT_EQ(mask_with("same", {"--overlap", "0.5", "--blend", "gaussian"}), own);
  EXPECT_NE(mask_with("sparse", {"--overlap", "0"}), own);
  EXPECT_NE(mask_with("flat", {"--data.overlap", "0.5", "--blend", "constant"}), own);
  EXPECT_THAT(completed({"predict", "--over"}), HasSubstr("--overlap"));
}

TEST_F(VolumesVerb, RefuseFlagsThatHaveNoEffect) {
  const auto refusal = [&](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  const auto predict = [&](const std::string& run_folder, const std::string& flag,
                           const std::string& value) {
    return refusal({"predict", run_folder, "--images", "scans/volumes", "--out", "m", flag, value});
  };
  EXPECT_THAT(predict("runs/volumes", "--overlap", "1"),
              AllOf(HasSubstr("overlap"), HasSubstr("from 0 to 0.95")));
  EXPECT_THAT(predict("runs/volumes", "--blend", "gausian"), HasSubstr("did you mean 'gaussian'?"));
  ASSERT_EQ(run({"train", "small.toml", "--quiet", "--epochs", "1"}).code, 0);
  EXPECT_THAT(predict("runs/small", "--overlap", "0.5"),
              AllOf(HasSubstr("'overlap' in [data] has no effect for 'carvana'"),
                    HasSubstr("only volumes")));
  EXPECT_THAT(predict("runs/small", "--blend", "linear"), HasSubstr("'blend' in [data] has no"));
  EXPECT_THAT(refusal({"evaluate", "runs/volumes", "--overlap", "0.5"}), HasSubstr("unknown flag"));
  EXPECT_THAT(refusal({"train", "small.toml", "--flip-axes", "rows"}),
              HasSubstr("'flip_axes' in [data] has no effect for 'carvana'"));
  EXPECT_THAT(refusal({"train", "volumes.toml", "--flip", "both"}), HasSubstr("'flip_axes'"));
  EXPECT_THAT(refusal({"train", "volumes.toml", "--flip-axes", "depth"}),
              HasSubstr("slices, rows, columns"));
}

TEST_F(VolumesVerb, SplitByAShareAndASeed) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "volumes.toml", "--dry-run", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return event_of(words, "plan");
  };
  EXPECT_EQ(plan({})["training_examples"], 16) << "4 patches of each of 4 volumes";
  EXPECT_EQ(plan({"--validation", "0.5", "--split-seed", "7"})["training_examples"], 12);
}

TEST_F(VolumesVerb, IgnoredLabelsAreCountedAndNeverAllOfThem) {
  const Finished check = run({"data", "check", "volumes.toml", "--mask-ignore", "2"});
  EXPECT_EQ(check.code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr(" targets are ignored: they are -100"));
  const Finished all = run({"train", "volumes.toml", "--mask-ignore", "0,1,2"});
  EXPECT_EQ(all.code, 2);
  EXPECT_THAT(all.err, HasSubstr("'mask_ignore' in [data] lists the labels of all classes"));
}

// "s0" is the id of both files.
TEST_F(VolumesVerb, PredictKeepsResultsOfEqualIdsApart) {
  fs::create_directories(folder_ / "twins");
  write_file(folder_ / "twins/s0.nii.gz", read_file(folder_ / "scans/volumes/scan_002.nii.gz"));
  write_file(folder_ / "twins/s1.nii.gz", read_file(folder_ / "scans/volumes/scan_003.nii.gz"));
  const Finished unpacked =
      run({"-c", "gunzip -c twins/s0.nii.gz > twins/s0.nii"}, {.program = "/bin/sh"});
  ASSERT_EQ(unpacked.code, 0) << unpacked.err;
  const Finished done = run({"predict", "runs/volumes", "--images", "twins", "--out", "of_twins"});
  ASSERT_EQ(done.code, 0) << done.err;
  for (const char* name : {"s0_mask.nii", "s0_mask.nii.gz", "s0.nii_slices.png",
                           "s0.nii.gz_slices.png", "s1_mask.nii.gz", "s1_slices.png"})
    EXPECT_TRUE(fs::exists(folder_ / "of_twins" / name)) << name;
  EXPECT_FALSE(fs::exists(folder_ / "of_twins/s0_slices.png"));
}

// The tolerance of VolumeRun.DryRunOfLargePatchesIsNearTheMeasuredPeaks.
TEST_F(VolumesVerb, DryRunIsNearTheMeasuredPeaks) {
  const json plan = event_of({"train", "volumes.toml", "--dry-run", "--json"}, "plan");
  const std::vector<double> measured = measured_peaks("3,9");
  ASSERT_EQ(plan["stages"].size(), measured.size());
  for (std::size_t stage = 0; stage < measured.size(); ++stage)
    EXPECT_NEAR(plan["stages"][stage]["predicted_peak_bytes"].get<double>() / measured[stage], 1.15,
                0.15)
        << "stage " << stage;
}

TEST_F(VolumesVerb, BalanceIsNearTheMeasuredPeaks) {
  const json cut = json_of({"balance", "volumes.toml", "--json", "--by", "size"});
  const std::vector<int> balance = cut["balance"];
  ASSERT_EQ(balance.size(), 2u);
  EXPECT_EQ(balance[0] + balance[1], 12);
  const std::vector<double> measured = measured_peaks(text(balance[0], ",", balance[1]));
  for (std::size_t stage = 0; stage < measured.size(); ++stage)
    EXPECT_NEAR(cut["predicted_peak_bytes"][stage].get<double>() / measured[stage], 1.15, 0.15)
        << "stage " << stage;
}

// The loss needs most of the last layer's stage: one-hot targets beside the outputs.
TEST_F(VolumesVerb, DryRunKnowsTheMemoryOfTheLoss) {
  for (const std::string loss : {"dice", "cross_entropy+dice"}) {
    const json plan = event_of(
        {"train", "volumes.toml", "--dry-run", "--json", "--balance", "11,1", "--loss", loss},
        "plan");
    const json done = event_of({"train", "volumes.toml", "--json", "--epochs", "1", "--balance",
                                "11,1", "--loss", loss, "--name", "loss"},
                               "done");
    EXPECT_NEAR(plan["stages"][1]["predicted_peak_bytes"].get<double>() /
                    done["peaks"][1]["peak_bytes"].get<double>(),
                1.05, 0.06)
        << loss;
  }
}

// Weights are most of the memory of a wide net on small patches.
TEST_F(VolumesVerb, LevelsAreNearTheirFormulas) {
  std::string wide = volumes_recipe;
  wide.replace(wide.find("width = 4"), 9, "width = 16");
  wide.replace(wide.find("[8, 16, 16]"), 11, "[4, 8, 8]");
  write_file(folder_ / "wide.toml", wide);
  const json levels = json_of({"levels", "wide.toml", "--ranks", "2", "--steps", "1", "--json"});
  ASSERT_EQ(levels["levels"].size(), 5u);
  for (const json& row : levels["levels"]) {
    EXPECT_NEAR(row["bytes"].get<double>() / row["formula_bytes"].get<double>(), 1, 0.05)
        << row["name"];
    if (row["ranks"] == 1) continue;
    EXPECT_NEAR(row["moved_bytes"].get<double>() / row["formula_moved_bytes"].get<double>(), 1,
                1e-3)
        << row["name"];
  }
}

}  // namespace
}  // namespace trestle
