#include "trestle/train/training_run.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <iostream>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/state.h"
#include "trestle/train/data_set.h"
#include "trestle/train/environment.h"

namespace trestle::train {

namespace {

constexpr std::int64_t warm_up_steps = 2;

// The pipeline refuses it too, but only once there is a batch.
void check_loss(const recipe::Recipe& recipe) {
  const nn::Loss loss = loss_of(recipe);
  if (loss.kind == nn::Loss::Kind::Additive) return;
  for (const auto& known : schedule::known_schedules())
    if (known.name == recipe.pipeline.schedule && !known.all_forwards_first)
      nn::refuse_whole_batch(loss, known.name);
}

void check_channels(const recipe::Recipe& recipe, const at::Tensor& inputs) {
  const std::int64_t asked = recipe.model.channels;
  if (asked == 0 || inputs.dim() != 4 || inputs.size(1) == asked) return;
  throw UsageError(text("'channels' in [model] is ", asked, ", the images of '", recipe.data.name,
                        "' have ", inputs.size(1)),
                   {.hint = "Leave 'channels' out to have the model's own number."});
}

}  // namespace

TrainingRun::TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks)
    : recipe_(recipe),
      hooks_(hooks),
      silent_(hooks.progress ? nullptr
                             : make_progress(ProgressStyle::Silent, Colours::Off, std::cout)),
      progress_(hooks.progress ? *hooks.progress : *silent_) {
  recipe::check_recipe(recipe_, problems_of_data(recipe_));
  check_loss(recipe_);
  devices_ = open_devices(recipe_);
  nn::Layers model = make_model(recipe_, hooks_.models);
  // With a given balance all mistakes in [pipeline] are found before any data is read or made.
  if (!recipe_.pipeline.balance.empty()) pipeline_ = make_pipeline(recipe_, model, devices_, {});
  task_ = make_task(recipe_, progress_);
  if (recipe_.optimizer.plateau && !task_.validation)
    throw UsageError(
        "'plateau' in [optimizer] goes by the validation metric, and no data are kept for it",
        {.hint = "Give 'validation' in [data] a share above 0, or set plateau = false."});
  const data::Batch first = *task_.training->epoch(0).next();
  check_channels(recipe_, first.inputs);
  if (!pipeline_)
    pipeline_ = with_inputs_named(recipe_, first.inputs, [&] {
      return make_pipeline(recipe_, model, devices_, {first.inputs});
    });
  optimizers_ = make_optimizers(recipe_, *pipeline_);
  if (recipe_.train.predict)
    prediction_ = with_inputs_named(
        recipe_, first.inputs, [&] { return predict_step(recipe_, *pipeline_, task_, first); });
  plan_ = make_plan(recipe_, *pipeline_, model, devices_, task_, prediction_);
  if (recipe_.optimizer.plateau) {
    optim::PlateauOptions options;
    options.factor = recipe_.optimizer.plateau_factor;
    options.patience = static_cast<int>(recipe_.optimizer.plateau_patience);
    plateau_.emplace(options);
  }
  state_.seed = static_cast<std::uint64_t>(recipe_.train.seed);
  state_.recipe_hash = recipe::recipe_hash(recipe_);
}

void TrainingRun::begin(const RunFolder& folder) {
  folder_ = folder;
  write_file(folder_.environment(), environment_json(devices_));
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics());
}

void TrainingRun::restore(const RunFolder& folder) {
  folder_ = folder;
  checkpoint::TrainingCheckpoint saved = checkpoint::read_training_checkpoint(folder_.last());
  if (saved.state.recipe_hash != state_.recipe_hash)
    throw UsageError(
        text(folder_.recipe().string(), ": is not the recipe that this run was saved under"),
        {.hint = "Put it back as it was, or start a new run."});
  checkpoint::copy_into(saved.weights, weights(),
                        (folder_.last() / "weights.safetensors").string());
  for (StageOptimizer& stage : optimizers_)
    optim::load_optimizer_state(*stage.optimizer, stage.names, saved.optimizer);
  state_ = std::move(saved.state);
  pipeline_->set_step_number(state_.step);
  auto number = [&](const char* name) {
    const auto found = state_.numbers.find(name);
    return found == state_.numbers.end() ? 0.0 : found->second;
  };
  loss_sum_ = number("loss_sum");
  loss_weight_ = number("loss_weight");
  for (StageOptimizer& stage : optimizers_)
    optim::set_learning_rate(*stage.optimizer, state_.numbers.at("learning_rate"));
  if (plateau_)
    plateau_->load({.best = number("plateau_best"),
                    .has_best = number("plateau_has_best") != 0,
                    .bad_steps = static_cast<int>(number("plateau_bad_steps")),
                    .cooling = static_cast<int>(number("plateau_cooling"))});
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics(), state_.step, state_.epoch);
}

TrainResult TrainingRun::run() {
  watch_ = Stopwatch();
  progress_.plan(plan_);
  while (state_.epoch < recipe_.train.epochs) {
    const Stopwatch epoch_watch;
    EpochReport report;
    if (train_epoch() == Outcome::Stopped || validate(report) == Outcome::Stopped) {
      save();
      save_views();
      progress_.done(result(false));
      return result(false);
    }
    report.seconds = epoch_watch.seconds();
    close_epoch(report);
  }
  progress_.done(result(true));
  return result(true);
}

bool TrainingRun::stop_asked() const {
  return (hooks_.stop_after_steps > 0 && steps_here_ >= hooks_.stop_after_steps) ||
         (hooks_.should_stop && hooks_.should_stop());
}

TrainingRun::Outcome TrainingRun::train_epoch() {
  pipeline_->train();
  reset_peaks();
  epoch_seconds_ = 0;
  epoch_examples_ = 0;
  const Stopwatch watch;
  data::Epoch batches = task_.training->epoch(state_.epoch, state_.batch);
  while (std::optional<data::Batch> batch = batches.next()) {
    train_step(*batch);
    epoch_seconds_ = watch.seconds();
    if (state_.batch == plan_.steps_per_epoch || stop_asked()) measured_ = pipeline_->timeline();
    if (stop_asked()) {
      keep_peaks();
      return Outcome::Stopped;
    }
    if (recipe_.train.save_every > 0 && state_.step % recipe_.train.save_every == 0) save();
  }
  keep_peaks();
  return Outcome::Finished;
}

void TrainingRun::train_step(const data::Batch& batch) {
  const Stopwatch watch;
  const StepResult done = with_inputs_named(recipe_, batch.inputs, [&] {
    return pipeline_->step(batch.inputs, batch.targets, task_.loss);
  });
  const double step_seconds = watch.seconds();
  if (!std::isfinite(done.loss))
    throw Error(text("the loss became ", done.loss, " in step ", state_.step + 1, " (epoch ",
                     state_.epoch + 1, ")"),
                {.hint = "Lower learning_rate in [optimizer]. What was saved before this step "
                         "stays as it is."});
  if (recipe_.optimizer.clip_grad_norm > 0) {
    pipeline_->clip_grad_norm(recipe_.optimizer.clip_grad_norm);
  }
  for (StageOptimizer& stage : optimizers_) stage.optimizer->step();
  pipeline_->zero_grad();  // now, so that an evaluation has the gradients' memory too
  ++state_.step;
  ++state_.batch;
  if (++steps_here_ > warm_up_steps) {
    ++timed_steps_;
    step_seconds_ += step_seconds;
    optimizer_seconds_ += watch.seconds() - step_seconds;
  }
  // An additive loss is a mean over what it weighs; a whole-batch loss has no weight
  // of its own and counts examples.
  const double weight = task_.loss.kind == nn::Loss::Kind::Additive && done.weight > 0
                            ? done.weight
                            : static_cast<double>(batch.size());
  loss_sum_ += done.loss * weight;
  loss_weight_ += weight;
  epoch_examples_ += batch.size();
  metrics_->add_step(state_.step, state_.epoch + 1, done.loss);
  progress_.step({.epoch = state_.epoch + 1,
                  .epochs = recipe_.train.epochs,
                  .step = state_.batch,
                  .steps = plan_.steps_per_epoch,
                  .loss = done.loss,
                  .examples_per_second =
                      epoch_seconds_ > 0
                          ? static_cast<double>(epoch_examples_ - batch.size()) / epoch_seconds_
                          : 0});
}

TrainingRun::Outcome TrainingRun::validate(EpochReport& report) {
  if (!task_.validation) return Outcome::Finished;
  at::NoGradGuard no_grad;
  nn::Tally loss, metric;
  data::Epoch batches = task_.validation->epoch(0);
  for (data::Batch& batch : batches) {
    const at::Tensor output = pipeline_->evaluate(batch.inputs).to(at::kCPU);
    const double weight = task_.loss.kind == nn::Loss::Kind::Additive
                              ? task_.loss.weight(batch.targets)
                              : static_cast<double>(batch.size());
    loss += {task_.loss.value(output, batch.targets).item<double>() * weight, weight};
    metric += task_.metric(output, batch.targets);
    if (batch.index == 0 && recipe_.train.pictures) {
      const std::int64_t rows = std::min<std::int64_t>(batch.size(), 32);
      shown_output_ = output.narrow(0, 0, rows).clone();
      shown_ = data::Batch{batch.inputs.narrow(0, 0, rows).clone(),
                           batch.targets.narrow(0, 0, rows).clone(), batch.names, 0};
    }
    if (stop_asked()) return Outcome::Stopped;
  }
  report.validation_loss = loss.mean();
  report.metric = metric.mean();
  return Outcome::Finished;
}

void TrainingRun::close_epoch(EpochReport& report) {
  report.epoch = state_.epoch + 1;
  report.epochs = recipe_.train.epochs;
  report.step = state_.step;
  report.steps = plan_.steps_per_epoch;
  report.training_loss = loss_weight_ > 0 ? loss_sum_ / loss_weight_ : 0;
  report.metric_name = task_.metric_name;
  report.learning_rate = optim::learning_rate(*optimizers_.at(0).optimizer);
  report.examples_per_second =
      epoch_seconds_ > 0 ? static_cast<double>(epoch_examples_) / epoch_seconds_ : 0;
  report.best = !report.metric || state_.best_epoch < 0 || *report.metric > state_.best_metric;
  draw_picture(report);
  metrics_->add_epoch(report);
  if (report.best) {
    save_best(report);
    state_.best_epoch = state_.epoch;
    state_.best_metric = report.metric.value_or(0);
  }
  lower_learning_rate(report);
  ++state_.epoch;
  state_.batch = 0;
  loss_sum_ = loss_weight_ = 0;
  save();
  save_views();
  progress_.epoch(report);
}

void TrainingRun::lower_learning_rate(const EpochReport& report) {
  if (!plateau_ || !report.metric || !plateau_->step(*report.metric)) return;
  const double rate = report.learning_rate * plateau_->factor();
  for (StageOptimizer& stage : optimizers_) optim::set_learning_rate(*stage.optimizer, rate);
  progress_.note(text("          no better ", task_.metric_name, " for ",
                      recipe_.optimizer.plateau_patience + 1, " epochs: the learning rate is now ",
                      rate));
}

TrainResult TrainingRun::result(bool finished) const {
  TrainResult out;
  out.run_folder = folder_.path;
  out.finished = finished;
  out.epochs = state_.epoch;
  out.steps = state_.step;
  out.seconds = watch_.seconds();
  out.metric_name = task_.metric_name;
  if (task_.validation && state_.best_epoch >= 0) out.best_metric = state_.best_metric;
  out.best_epoch = state_.best_epoch + 1;
  if (timed_steps_ > 0) {
    out.step_seconds = step_seconds_ / static_cast<double>(timed_steps_);
    out.optimizer_seconds = optimizer_seconds_ / static_cast<double>(timed_steps_);
  }
  out.predicted_seconds = plan_.predicted_seconds;
  out.peaks = peaks_;
  return out;
}

}  // namespace trestle::train
