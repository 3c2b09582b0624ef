#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trestle/precision/gradient_scaler.h"
#include "trestle/train/run_rate.h"
#include "trestle/train/training_setup.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Where a run stands, for error messages: both counted from 0.
struct StepPlace {
  std::int64_t step = 0, epoch = 0;
};

// Ends each step of a run: sets the learning rate, takes fp16's scale out of the gradients, clips
// them and steps the optimizers. What it refers to must outlive it.
class Updater {
 public:
  explicit Updater(TrainingSetup& setup);

  // What the losses of the step are multiplied by; 1 but for fp16.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1; }

  // Returns the norm of all gradients before they were clipped. With fp16 a step whose gradients
  // overflowed is skipped. Throws Error, with the parameter, where gradients became infinite or NaN
  // otherwise. Clears the gradients.
  double finish_step(const StepPlace& place);

  // Of the next step, and of the last one.
  double learning_rate_at(const StepPlace& place) { return rate_.at(place.step, place.epoch); }
  double last_learning_rate() const { return learning_rate_; }
  // The new base rate where an epoch's validation metric makes `plateau` lower it.
  std::optional<double> epoch_ends(const std::optional<double>& metric) {
    return rate_.epoch_ends(metric);
  }

  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  bool unscale_gradients(const StepPlace& place);
  double clip_gradients();
  void step_optimizers(const StepPlace& place);
  void refuse_nonfinite(double norm, const StepPlace& place) const;

  TrainingSetup& setup_;
  RunRate rate_;
  std::optional<precision::GradientScaler> scaler_;  // of fp16
  double learning_rate_ = 0;                         // of the last step
};

}  // namespace trestle::train
