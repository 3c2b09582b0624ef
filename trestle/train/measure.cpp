#include "trestle/train/measure.h"

#include <algorithm>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/text.h"
#include "trestle/train/training_run.h"

namespace trestle::train {

StepTimes TrainingRun::measure(const MeasureOptions& options) {
  StepTimes times;
  times.predicted_seconds = plan_.predicted_seconds;
  times.predicted_idle = plan_.predicted_idle;
  times.micro_batches = plan_.micro_batches;
  times.balance = plan_.balance;
  times.devices = plan_.devices;
  // One batch, loaded before the clock runs: its readers would take cores from the steps.
  const data::Batch batch = *task_.training->epoch(0).next();
  pipeline_->train();
  reset_peaks();
  std::vector<double> optimizer_seconds;
  for (int step = 0; step < options.warm_up + options.steps; ++step) {
    const Stopwatch watch;
    with_inputs_named(recipe_, batch.inputs,
                      [&] { return pipeline_->step(batch.inputs, batch.targets, task_.loss); });
    const double step_seconds = watch.seconds();
    if (recipe_.optimizer.clip_grad_norm > 0)
      pipeline_->clip_grad_norm(recipe_.optimizer.clip_grad_norm);
    for (StageOptimizer& stage : optimizers_) stage.optimizer->step();
    pipeline_->zero_grad();
    if (step < options.warm_up) continue;
    times.seconds.push_back(step_seconds);
    optimizer_seconds.push_back(watch.seconds() - step_seconds);
  }
  keep_peaks();
  times.peaks = peaks_;
  times.optimizer_seconds = median(optimizer_seconds);
  return times;
}

StepTimes measure_steps(const recipe::Recipe& recipe, const MeasureOptions& options) {
  if (options.steps < 1 || options.warm_up < 0)
    throw UsageError(text("measuring ", counted(options.steps, "step"), " after ", options.warm_up,
                          " to warm up: at least 1 and 0 are needed"));
  return TrainingRun(recipe, {.models = options.models, .user_parts = options.user_parts})
      .measure(options);
}

}  // namespace trestle::train
