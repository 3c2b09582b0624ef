#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/optim/reduce_on_plateau.h"
#include "trestle/train/metrics.h"
#include "trestle/train/run_folder.h"
#include "trestle/train/setup.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// One call of train() or resume(): everything that a recipe makes, and where the run stands.
class TrainingRun {
 public:
  TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks);

  const RunPlan& plan() const { return plan_; }
  void begin(const RunFolder& folder);    // from the start
  void restore(const RunFolder& folder);  // where it was saved
  TrainResult run();

 private:
  enum class Outcome { Finished, Stopped };

  // training_run.cpp
  Outcome train_epoch();
  void train_step(const data::Batch& batch);
  Outcome validate(EpochReport& report);
  void close_epoch(EpochReport& report);
  void lower_learning_rate(const EpochReport& report);
  bool stop_asked() const;
  TrainResult result(bool finished) const;

  // training_save.cpp
  NamedTensors weights() const;
  void save();
  void save_best(const EpochReport& report);
  void save_views();
  void draw_picture(EpochReport& report);
  void keep_peaks();
  void reset_peaks();

  recipe::Recipe recipe_;
  TrainHooks hooks_;
  std::unique_ptr<Progress> silent_;
  Progress& progress_;
  std::vector<Device> devices_;
  Task task_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<StageOptimizer> optimizers_;
  std::optional<Prediction> prediction_;
  RunPlan plan_;
  std::optional<optim::ReduceOnPlateau> plateau_;

  RunFolder folder_;
  std::unique_ptr<MetricsFile> metrics_;
  checkpoint::TrainState state_;
  double loss_sum_ = 0, loss_weight_ = 0;  // of this epoch so far
  schedule::Timeline measured_;
  std::vector<DevicePeak> peaks_;
  std::optional<data::Batch> shown_;  // the first validation batch, cut to what a picture shows
  at::Tensor shown_output_;

  Stopwatch watch_;
  std::int64_t steps_here_ = 0;  // of this call
  std::int64_t timed_steps_ = 0;
  double step_seconds_ = 0, optimizer_seconds_ = 0;
  double epoch_seconds_ = 0;  // training in this epoch, in this call
  std::int64_t epoch_examples_ = 0;
};

}  // namespace trestle::train
