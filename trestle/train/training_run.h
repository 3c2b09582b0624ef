#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/train/batch_stream.h"
#include "trestle/train/checkpointer.h"
#include "trestle/train/epoch_picture.h"
#include "trestle/train/peak_memory.h"
#include "trestle/train/run_folder/early_stop.h"
#include "trestle/train/run_folder/run_reporter.h"
#include "trestle/train/step_timer.h"
#include "trestle/train/training_setup.h"
#include "trestle/train/updater.h"
#include "trestle/train/validator.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// One call of train() or resume(): the loop over epochs and batches, and where the run stands. A
// batch goes through the pipeline; after `accumulate` batches the Updater steps the optimizers;
// each epoch ends with a validation, a checkpoint and a report.
class TrainingRun {
 public:
  // As TrainingSetup. Call begin() or restore(), then run().
  TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks,
              const RunFolder* resumed = nullptr);

  // As given, with the paths of the data that were found.
  const recipe::Recipe& recipe() const { return setup_.recipe; }
  const std::vector<int>& cut() const { return setup_.plan.balance; }
  void begin(const RunFolder& folder);    // from the start
  void restore(const RunFolder& folder);  // from the folder's checkpoint
  TrainResult run();

 private:
  enum class Outcome { Finished, Stopped };

  // The current epoch.
  struct Epoch {
    std::int64_t batches = 0;  // trained on
    double loss_sum = 0, loss_weight = 0;
    double step_loss = 0;                // of the batches so far whose gradients add up
    double seconds_before = 0;           // before the run was stopped and resumed
    Stopwatch watch;                     // in this call
    double training_seconds = 0;         // in this call
    std::int64_t training_examples = 0;  // in this call
    bool has_targets = false;            // in this call, a target on this rank that is not ignored
  };

  void open_folder(const RunFolder& folder);
  void open_reports(RunReporter::Files files);

  Outcome train_epoch();
  void refuse_epoch_without_targets() const;
  void train_batch(const data::Batch& batch, double share, StepOptions::Update update);
  void finish_step(const StepResult& done);
  void refuse_nonfinite_loss(double loss, const data::Batch& batch) const;
  std::string hint_for_nonfinite(const std::string& found, const data::Batch& batch) const;
  std::vector<double> shares_of(const std::vector<data::Batch>& group) const;
  std::int64_t micro_batches_before() const;  // of the step's earlier batches, on this replica

  Outcome validate(EpochReport& report);
  void close_epoch(EpochReport& report);
  void rate_epoch(EpochReport& report);
  void lower_learning_rate(const EpochReport& report);

  bool has_all_steps() const;   // of max_steps
  bool is_inside_step() const;  // between two batches whose gradients add up
  bool must_stop() const;
  void check_same_run(const checkpoint::TrainState& saved) const;
  std::int64_t batches_done(const checkpoint::TrainState& saved) const;

  void save();
  std::string why_unwritten(const std::function<void()>& write) const;
  void warn_unwritten(const char* what, const std::string& why);
  // Takes the last step's timeline, with what crossed between hosts. All ranks call it.
  void take_timeline();
  void save_views();
  void draw_picture(EpochReport& report);
  void write_sample(EpochReport& report);
  void report_batch(const data::Batch& batch, double loss);
  void report_validation(const Validator::Batch& batch, double seconds);
  TimeLeft::Work work_left(std::int64_t validated) const;
  double epoch_seconds() const { return epoch_.seconds_before + epoch_.watch.seconds(); }
  StepPlace place() const { return {state_.step, state_.epoch}; }
  TrainResult result(Outcome outcome) const;

  TrainHooks hooks_;
  TrainingSetup setup_;
  Updater updater_;
  RunReporter reporter_;
  EarlyStop early_stop_;
  RunFolder folder_;
  std::optional<Checkpointer> checkpointer_;

  checkpoint::TrainState state_;
  double flops_per_token_ = 0;  // of language models
  double data_content_ = 0;     // 53 bits of Dataset::content_hash(), which JSON stores exactly
  Epoch epoch_;
  schedule::Timeline measured_;
  EpochPicture picture_;
  PeakMemory peaks_;
  StepTimer timer_;
  std::int64_t skipped_steps_ = 0;  // of this call, with fp16
  Stopwatch watch_;
};

}  // namespace trestle::train
