#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/recipe/deepspeed_recipe.h"
#include "trestle/train/batch_stream.h"
#include "trestle/train/best_weights.h"
#include "trestle/train/early_stop.h"
#include "trestle/train/validator.h"
#include "trestle/train/measure.h"
#include "trestle/train/metrics.h"
#include "trestle/train/run_folder.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/run_rate.h"
#include "trestle/train/setup.h"
#include "trestle/train/stage_replicas.h"
#include "trestle/train/tensorboard.h"
#include "trestle/train/time_left.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// One call of train() or resume(): everything that a recipe makes, and where the run stands.
class TrainingRun {
 public:
  // `synthesize` in [data] may make what is not there. A run that is `going_on` in its folder needs
  // the data that it began with.
  TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks,
              const RunFolder* going_on = nullptr);

  const RunPlan& plan() const { return plan_; }
  // As asked for, with the paths of the data that were found.
  const recipe::Recipe& recipe() const { return recipe_; }
  void begin(const RunFolder& folder);    // from the start
  void restore(const RunFolder& folder);  // where it was saved
  TrainResult run();
  StepTimes measure(const MeasureOptions& options);  // measure.cpp; instead of all of these

 private:
  enum class Outcome { Finished, Stopped };

  // training_run.cpp
  void open_data(const RunFolder* going_on);
  std::unique_ptr<Pipeline> pipeline_of(const nn::Layers& model, const nn::Values& sample) const;
  void set_up_model(const nn::Layers& model, const std::optional<data::Batch>& first);
  ShardOptions shard_options() const;
  void predict(const std::optional<data::Batch>& first);
  Outcome validate(EpochReport& report);
  void close_epoch(EpochReport& report);
  void judge_epoch(EpochReport& report);
  void lower_learning_rate(const EpochReport& report);
  bool has_all_steps() const;  // of max_steps
  bool inside_step() const;    // between two batches whose gradients add up
  bool stop_asked() const;
  void check_same_run(const checkpoint::TrainState& saved) const;
  std::int64_t samples_done() const;
  std::int64_t examples_of(const data::Batch& batch, const data::Loader& loader) const;
  std::int64_t batches_done(const checkpoint::TrainState& saved) const;

  // training_ranks.cpp: what the ranks of a run tell each other
  void refuse_other_recipes() const;
  void load_weights_over_ranks();
  void freeze_over_ranks();
  void add_ranks(const std::vector<Device>& devices);
  void share(Scores& judged) const;
  double data_mark_of(const std::optional<data::Batch>& first) const;
  std::vector<double> shared_shares(const std::vector<data::Batch>& group) const;
  void gather_peaks();

  // training_step.cpp
  Outcome train_epoch();
  void train_batch(const data::Batch& batch, double share);
  void finish_step();
  bool unscale_gradients();
  double clip_gradients();
  std::vector<comm::Group> norm_groups() const;
  void refuse_nonfinite(double loss, const data::Batch& batch) const;
  void refuse_nonfinite_gradients(double norm) const;
  std::string nonfinite_gradient() const;

  // training_report.cpp
  void report_step(const data::Batch& batch, double loss);
  void report_validation(std::int64_t done, double loss, double examples_per_second);
  TimeLeft::Work work_left(std::int64_t validated) const;
  double seconds_of_epoch() const;
  void add_events(const EpochReport& report);
  TrainResult result(bool finished) const;

  // training_save.cpp
  NamedTensors weights() const;
  NamedTensors gradients() const;
  void put_in(const checkpoint::SavedTraining& saved);
  void put_gradients_in(const checkpoint::SavedTraining& saved);
  void save();
  void write_checkpoint() const;
  void save_best(const EpochReport& report);
  void keep_weights(const EpochReport& report);
  void write_weights(const std::filesystem::path& file, const EpochReport& report);
  void save_views();
  void draw_picture(EpochReport& report);
  bool draw_shown(const EpochReport& report);
  void keep_peaks();
  void reset_peaks();

  RunRanks ranks_;
  recipe::Recipe recipe_;
  const std::optional<recipe::DeepspeedConfig> deepspeed_;  // where the run has one
  TrainHooks hooks_;
  std::unique_ptr<Progress> silent_;
  Progress& progress_;
  std::vector<Device> devices_;
  Task task_;
  std::shared_ptr<StageReplicas> replicas_;  // where there are several pipelines
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<StageOptimizer> optimizers_;
  std::optional<Prediction> prediction_;
  RunPlan plan_;
  std::optional<RunRate> rate_;
  std::optional<precision::GradientScaler> scaler_;  // of fp16
  EarlyStop early_stop_;
  std::optional<BestWeights> bests_;

  RunFolder folder_;
  std::unique_ptr<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  checkpoint::TrainState state_;
  std::int64_t batch_ = 0;                 // batches done of this epoch
  double loss_sum_ = 0, loss_weight_ = 0;  // of this epoch so far
  double group_loss_ = 0;                  // of the step so far whose batches add up
  double data_mark_ = 0;                   // of the data: which examples come first
  double learning_rate_ = 0;               // that the last step was made with
  schedule::Timeline measured_;
  std::vector<DevicePeak> peaks_;
  std::optional<data::Batch> shown_;  // the first validation batch, cut to what a picture shows
  at::Tensor shown_output_;

  Stopwatch watch_;
  std::int64_t steps_here_ = 0;  // of this call
  std::int64_t timed_steps_ = 0, timed_batches_ = 0;
  double step_seconds_ = 0, optimizer_seconds_ = 0;
  double epoch_seconds_ = 0;  // training in this epoch, in this call
  std::int64_t epoch_examples_ = 0;
  Stopwatch epoch_watch_;            // of this epoch, in this call
  double epoch_seconds_before_ = 0;  // what it took before the stop
  TimeLeft times_;
};

}  // namespace trestle::train
