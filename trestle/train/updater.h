#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trestle/pipeline/pipeline.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/train/optimizers/run_rate.h"
#include "trestle/train/training_setup.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The position of a run, for error messages: both counted from 0.
struct StepPlace {
  std::int64_t step = 0, epoch = 0;
};

// The pipeline updates the weights, as actions of its table (NORM and STEP). The Updater sets the
// learning rate and the momentum before, gives the pipeline fp16's scaler, and looks after steps
// that were skipped. The set-up must outlive it.
class Updater {
 public:
  explicit Updater(TrainingSetup& setup);

  // Sets the optimizers' rates for the step that the next batch ends.
  void prepare(const StepPlace& place);
  // Options of Pipeline::step() for a batch that adds its gradients to the step's, or ends the
  // step.
  StepOptions options_of_batch(StepOptions::Update update);
  // After the batch that ended the step. With fp16 a step whose gradients overflowed was skipped.
  // Throws Error, with the parameter, where gradients became infinite or NaN otherwise.
  void finish(const StepResult& result, const StepPlace& place);

  // The learning rate of the next step, and of the last one.
  double learning_rate_at(const StepPlace& place) { return rate_.at(place.step, place.epoch); }
  double last_learning_rate() const { return learning_rate_; }
  // The new base rate where an epoch's validation metric makes `plateau` lower it.
  std::optional<double> epoch_ends(const std::optional<double>& metric) {
    return rate_.epoch_ends(metric);
  }

  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  [[noreturn]] void refuse_nonfinite(const StepPlace& place) const;

  TrainingSetup& setup_;
  RunRate rate_;
  std::optional<precision::GradientScaler> scaler_;  // of fp16
  double scale_ = 1;                                 // of the current step
  double learning_rate_ = 0;                         // of the last step
};

}  // namespace trestle::train
