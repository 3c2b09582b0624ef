#include "trestle/train/run_folder/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "trestle/base/files.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;

TEST(Metrics, ResumedFileDropsLinesAfterSave) {
  const fs::path path = fs::path(TRESTLE_BINARY_DIR) / "metrics_test.jsonl";
  MetricsFile metrics(path);
  metrics.add_step({.step = 1, .epoch = 1, .loss = 0.1 + 0.2, .peaks = {{"virtual:0", 77}}});
  EpochReport report;
  report.epoch = 1;
  report.step = 1;
  report.metric_name = "dice";
  report.metric = 0.5;
  report.validation_loss = 0.25;
  metrics.add_epoch(report);
  const std::string saved = read_file(path);
  EXPECT_EQ(saved.substr(0, saved.find('\n')),
            R"({"step":1,"epoch":1,"loss":0.30000000000000004,"learning_rate":0.0,)"
            R"("gradient_norm":0.0,"peak_bytes":{"virtual:0":77}})");
  metrics.add_step({.step = 2, .epoch = 2, .loss = std::nan("")});
  report.epoch = 2;
  metrics.add_epoch(report);
  std::ofstream(path, std::ios::app) << "{\"step\": 3, \"epo";
  const MetricsFile resumed(path, 1, 1);
  EXPECT_EQ(read_file(path), saved);
  const auto epochs = read_epochs(path);
  ASSERT_EQ(epochs.size(), 1u);
  EXPECT_EQ(epochs[0].metric, 0.5);
  EXPECT_EQ(epochs[0].metric_name, "dice");
  EXPECT_NE(draw_curves(epochs, "a run").find("<svg"), std::string::npos);
  fs::remove(path);
}

TEST(Metrics, EpochOfLanguageModelHasItsFlops) {
  const fs::path path = fs::path(TRESTLE_BINARY_DIR) / "metrics_flops_test.jsonl";
  MetricsFile metrics(path);
  EpochReport report;
  report.epoch = 1;
  report.examples_per_second = 4;
  report.tokens_per_example = 512;
  report.flops_per_token = 1e6;
  metrics.add_epoch(report);
  EXPECT_NE(read_file(path).find(
                R"("tokens_per_second":2048.0,"model_flops_per_second":2048000000.0,"seconds")"),
            std::string::npos)
      << read_file(path);
  report.peak_flops = 4.096e9;
  metrics.add_epoch(report);
  EXPECT_NE(read_file(path).find(R"("mfu":0.5,"seconds")"), std::string::npos) << read_file(path);
  fs::remove(path);
}

}  // namespace
}  // namespace trestle::train
