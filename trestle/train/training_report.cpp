#include <algorithm>
#include <utility>

#include "trestle/train/run_end.h"
#include "trestle/train/training_run.h"

namespace trestle::train {

namespace {

// Nothing to say where there is nothing left.
std::optional<double> if_any(const TimeLeft& times, const TimeLeft::Work& work) {
  if (work.training == 0 && work.validation == 0) return std::nullopt;
  return times.of(work);
}

}  // namespace

// What the run has still to do, unless something ends it early; `validated`: batches of this epoch's
// validation.
TimeLeft::Work TrainingRun::work_left(std::int64_t validated) const {
  const std::int64_t per_epoch = plan_.steps_per_epoch;
  std::int64_t all = recipe_.train.epochs * per_epoch;  // batches of the whole run
  if (const std::int64_t most = recipe_.train.max_steps; most > 0) {
    const std::int64_t steps = plan_.optimizer_steps_per_epoch();
    all = std::min(all, most / steps * per_epoch + most % steps * recipe_.train.accumulate);
  }
  const std::int64_t batches = std::max<std::int64_t>(all - state_.epoch * per_epoch - batch_, 0);
  const std::int64_t closings = (batch_ + batches + per_epoch - 1) / per_epoch;
  const std::int64_t validation = task_.validation ? task_.validation->batches() : 0;
  return {batches, closings * validation - validated, closings};
}

void TrainingRun::report_step(const data::Batch& batch, double loss) {
  const auto before = static_cast<double>(epoch_examples_ - batch.size());
  const TimeLeft::Work all = work_left(0);
  const TimeLeft::Work here = {.training = std::min(plan_.steps_per_epoch - batch_, all.training)};
  progress_.step({.epoch = state_.epoch + 1,
                  .epochs = recipe_.train.epochs,
                  .step = batch_,
                  .steps = plan_.steps_per_epoch,
                  .loss = loss,
                  .examples_per_second = epoch_seconds_ > 0 ? before / epoch_seconds_ : 0,
                  .learning_rate = rate_->at(state_.step, state_.epoch),
                  .seconds_left = if_any(times_, here),
                  .run_seconds_left = if_any(times_, all)});
}

void TrainingRun::report_validation(std::int64_t done, double loss, double examples_per_second) {
  const std::int64_t batches = task_.validation->batches();
  progress_.validation_step({.epoch = state_.epoch + 1,
                             .epochs = recipe_.train.epochs,
                             .step = done,
                             .steps = batches,
                             .loss = loss,
                             .examples_per_second = examples_per_second,
                             .seconds_left = if_any(times_, {.validation = batches - done}),
                             .run_seconds_left = if_any(times_, work_left(done))});
}

double TrainingRun::seconds_of_epoch() const {
  return epoch_seconds_before_ + epoch_watch_.seconds();
}

void TrainingRun::add_events(const EpochReport& report) {
  if (!events_) return;
  EventFile::Scalars scalars = {{"epoch/training_loss", report.training_loss},
                                {"epoch/examples_per_second", report.examples_per_second},
                                {"epoch/seconds", report.seconds}};
  if (report.validation_loss)
    scalars.emplace_back("epoch/validation_loss", *report.validation_loss);
  if (report.metric) scalars.emplace_back("epoch/" + report.metric_name, *report.metric);
  events_->add(report.step, scalars);
}

TrainResult TrainingRun::result(bool finished) const {
  TrainResult out;
  out.run_folder = folder_.path;
  out.finished = finished;
  if (finished) out.to_go_on = flags_to_go_on(recipe_, state_, early_stop_);
  out.epochs = state_.epoch;
  out.steps = state_.step;
  out.seconds = watch_.seconds();
  out.metric_name = task_.metric_name;
  if (task_.validation && state_.best_epoch >= 0) out.best_metric = state_.best_metric;
  out.best_epoch = state_.best_epoch + 1;
  if (timed_batches_ > 0) out.step_seconds = step_seconds_ / static_cast<double>(timed_batches_);
  if (timed_steps_ > 0)
    out.optimizer_seconds = optimizer_seconds_ / static_cast<double>(timed_steps_);
  out.predicted_seconds = plan_.predicted_seconds;
  out.peaks = peaks_;
  return out;
}

}  // namespace trestle::train
