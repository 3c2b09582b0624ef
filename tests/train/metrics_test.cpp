#include "trestle/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "trestle/base/files.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;

TEST(Metrics, AResumedFileForgetsWhatCameAfterTheSave) {
  const fs::path path = fs::path(TRESTLE_BINARY_DIR) / "metrics_test.jsonl";
  MetricsFile metrics(path);
  metrics.add_step(1, 1, 0.1 + 0.2);
  EpochReport report;
  report.epoch = 1;
  report.step = 1;
  report.metric_name = "dice";
  report.metric = 0.5;
  report.validation_loss = 0.25;
  metrics.add_epoch(report);
  const std::string saved = read_file(path);
  metrics.add_step(2, 2, std::nan(""));
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

}  // namespace
}  // namespace trestle::train
