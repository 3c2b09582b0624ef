#include "trestle/train/measure.h"

#include <algorithm>
#include <exception>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/train/batch_stream.h"
#include "trestle/train/peak_memory.h"
#include "trestle/train/training_setup.h"
#include "trestle/train/updater.h"
#include "trestle/train/usage_check.h"

namespace trestle::train {

namespace {

// The place of every measured step: the first one of the run.
constexpr StepPlace first_step = {};

void run_step(TrainingSetup& setup, Updater& updater, const data::Batch& batch) {
  updater.prepare(first_step);
  const auto step = [&] {
    return setup.pipeline->step(batch.inputs, batch.targets, setup.task.loss,
                                updater.options_of_batch(StepOptions::Update::Now));
  };
  updater.finish(
      batch.inputs.defined() ? with_inputs_named(setup.recipe, batch.inputs, step) : step(),
      first_step);
}

StepTimes measure(TrainingSetup& setup, const MeasureOptions& options) {
  Updater updater(setup);  // refuses a schedule that the run is too short for
  StepTimes times;
  times.predicted_seconds = setup.plan.predicted_seconds;
  times.predicted_idle = setup.plan.predicted_idle;
  times.micro_batches = setup.plan.micro_batches;
  times.schedule = setup.plan.schedule;
  times.balance = setup.plan.balance;
  times.devices = setup.plan.devices;
  // One batch, loaded before the clock runs: the loader's threads would take cores from the steps.
  const data::Batch batch =
      *BatchStream(*setup.task.training, 0, 0, setup.ranks.reads(), setup.ranks.share()).next();
  Pipeline& pipeline = *setup.pipeline;
  pipeline.train();
  PeakMemory::reset(setup.devices);
  std::vector<double> optimizer_seconds;
  for (int step = 0; step < options.warm_up + options.steps; ++step) {
    const Stopwatch watch;
    run_step(setup, updater, batch);
    const double seconds = watch.seconds();
    if (step < options.warm_up) continue;
    const double update = schedule::optimizer_seconds(pipeline.timeline());
    times.seconds.push_back(seconds - update);
    optimizer_seconds.push_back(update);
  }
  PeakMemory peaks;
  peaks.update(pipeline, setup.plan, setup.ranks);
  times.peaks = peaks.devices();
  times.optimizer_seconds = median(optimizer_seconds);
  return times;
}

}  // namespace

double StepTimes::step_seconds() const { return median(seconds) + optimizer_seconds; }

StepTimes measure_steps(const recipe::Recipe& recipe, const MeasureOptions& options) {
  if (options.steps < 1 || options.warm_up < 0)
    throw UsageError(text("measuring ", counted(options.steps, "step"), " after ", options.warm_up,
                          " to warm up: at least 1 and 0 are needed"));
  const auto measured = [&] {
    TrainingSetup setup(
        recipe,
        {.world = options.world, .models = options.models, .user_parts = options.user_parts});
    return measure(setup, options);
  };
  if (options.world == nullptr) return measured();
  try {
    return measured();
  } catch (...) {
    fail_ranks(*options.world, std::current_exception());
    throw;
  }
}

}  // namespace trestle::train
