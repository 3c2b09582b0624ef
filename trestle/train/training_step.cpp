#include <algorithm>
#include <cmath>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/optim/factory.h"
#include "trestle/pipeline/find_nonfinite.h"
#include "trestle/sharding/norm_over_ranks.h"
#include "trestle/train/judge.h"
#include "trestle/train/training_run.h"

namespace trestle::train {

namespace {

constexpr std::int64_t warm_up_steps = 2;

// As many as are left, where fewer are. Read ahead, since each one's share depends on all.
std::vector<data::Batch> next_group(BatchStream& batches, std::int64_t most) {
  std::vector<data::Batch> group;
  while (static_cast<std::int64_t>(group.size()) < most) {
    std::optional<data::Batch> batch = batches.next();
    if (!batch) break;
    group.push_back(std::move(*batch));
  }
  return group;
}

}  // namespace

TrainingRun::Outcome TrainingRun::train_epoch() {
  pipeline_->train();
  reset_peaks();
  epoch_seconds_ = 0;
  epoch_examples_ = 0;
  const Stopwatch watch;
  const std::int64_t accumulate = recipe_.train.accumulate;
  std::int64_t done = inside_step() ? batch_ % accumulate : 0;  // a save came in between
  BatchStream batches(*task_.training, state_.epoch, batch_ - done, ranks_.reads(), ranks_.share());
  for (auto group = next_group(batches, accumulate); !group.empty() && !has_all_steps();
       group = next_group(batches, accumulate)) {
    const std::vector<double> shares = shared_shares(group);
    for (std::size_t i = static_cast<std::size_t>(std::exchange(done, 0)); i < group.size(); ++i) {
      const data::Batch batch = std::exchange(group[i], {});
      train_batch(batch, shares[i]);
      const bool last = i + 1 == group.size();
      if (last) finish_step();
      times_.training.add(watch.seconds() - epoch_seconds_);
      epoch_seconds_ = watch.seconds();
      const bool stop = stop_asked();
      if (batch_ == plan_.steps_per_epoch || stop || has_all_steps())
        measured_ = pipeline_->gather_timeline();
      if (stop) {
        keep_peaks();
        return Outcome::Stopped;
      }
      if (last && recipe_.train.save_every > 0 && state_.step % recipe_.train.save_every == 0)
        save();
    }
  }
  keep_peaks();
  return Outcome::Finished;
}

void TrainingRun::train_batch(const data::Batch& batch, double share) {
  const Stopwatch watch;
  const std::int64_t before = batch_ % recipe_.train.accumulate;
  const std::int64_t pieces = micro_batches_of(recipe_);
  const auto step = [&] {
    return pipeline_->step(batch.inputs, batch.targets, task_.loss,
                           {.gradient_scale = share * (scaler_ ? scaler_->scale() : 1),
                            .first_micro_batch = before * pieces * ranks_.replicas()});
  };
  const StepResult done =
      batch.inputs.defined() ? with_inputs_named(recipe_, batch.inputs, step) : step();
  refuse_nonfinite(done.loss, batch);
  ++batch_;
  if (steps_here_ >= warm_up_steps) {
    ++timed_batches_;
    step_seconds_ += watch.seconds();
  }
  const double weight = done.weight;
  loss_sum_ += done.loss * weight;
  loss_weight_ += weight;
  group_loss_ += done.loss * share;
  epoch_examples_ += examples_of(batch, *task_.training);
  report_step(batch, done.loss);
}

void TrainingRun::finish_step() {
  const Stopwatch watch;
  learning_rate_ = rate_->at(state_.step, state_.epoch);
  const bool finite = unscale_gradients();
  const double norm = clip_gradients();
  if (finite) {
    refuse_nonfinite_gradients(norm);
    const std::optional<double> momentum = rate_->momentum_at(state_.step, state_.epoch);
    for (StageOptimizer& stage : optimizers_) {
      optim::set_learning_rate(*stage.optimizer, learning_rate_, stage.rate_factors);
      if (momentum) optim::set_momentum(*stage.optimizer, *momentum);
      stage.optimizer->step();
    }
  }
  pipeline_->zero_grad();  // now, so that an evaluation has the gradients' memory too
  if (replicas_) replicas_->zero_grad();
  ++state_.step;
  if (++steps_here_ > warm_up_steps) {
    ++timed_steps_;
    optimizer_seconds_ += watch.seconds();
  }
  StepMetrics metrics = {.step = state_.step,
                         .epoch = state_.epoch + 1,
                         .loss = std::exchange(group_loss_, 0),
                         .learning_rate = learning_rate_,
                         .gradient_norm = norm};
  for (const Device& device : devices_)
    if (!device.torch.is_cpu())
      metrics.peaks.emplace_back(device_name(device.torch), memory_usage(device.torch).peak);
  if (metrics_) metrics_->add_step(metrics);
  if (events_)
    events_->add(metrics.step, {{"training/loss", metrics.loss},
                                {"training/learning_rate", metrics.learning_rate},
                                {"training/gradient_norm", metrics.gradient_norm}});
}

// True where the step is to be made. With fp16 it is not where gradients overflowed: their scale is
// smaller then for the next one.
bool TrainingRun::unscale_gradients() {
  if (!scaler_) return true;
  constexpr double smallest_scale = 1.0 / 1024;
  const bool overflowed =
      ranks_.any(!scaler_->unscale(replicas_ ? replicas_->stepped() : pipeline_->parameters()));
  if (overflowed) scaler_->note_overflow();
  const bool finite = !overflowed;
  if (!finite) rate_->leave_out_step();
  if (!finite && scaler_->scale() <= smallest_scale) refuse_nonfinite_gradients(std::nan(""));
  scaler_->update();
  return finite;
}

// Returns the norm from before.
double TrainingRun::clip_gradients() {
  const double most = recipe_.optimizer.clip_grad_norm;
  const bool divided = replicas_ && replicas_->divides();
  if (most <= 0)
    return divided ? sharding::norm_over_ranks(replicas_->stepped(), norm_groups())
                   : pipeline_->grad_norm();
  try {
    if (divided)
      return sharding::clip_over_ranks(replicas_->stepped(), norm_groups(), most,
                                       {.error_if_nonfinite = true});
    return pipeline_->clip_grad_norm(most, {.error_if_nonfinite = true});
  } catch (const StateError&) {
    return std::nan("");  // the gradients are as they were: somebody may look which it is
  }
}

// Over which the parts of the gradients lie.
std::vector<comm::Group> TrainingRun::norm_groups() const {
  return {replicas_->ranks().shard, ranks_.pipeline_group()};
}

void TrainingRun::refuse_nonfinite(double loss, const data::Batch& batch) const {
  if (std::isfinite(loss)) return;
  const std::int64_t before = batch_ % recipe_.train.accumulate;
  const std::int64_t pieces = micro_batches_of(recipe_);
  const auto whole = replicas_ ? replicas_->whole() : std::vector<ShardedParameters::Unsharded>();
  throw Error(
      text("the loss became ", loss, " in step ", state_.step + 1, " (epoch ", state_.epoch + 1,
           "): ", find_nonfinite({batch.inputs}, *pipeline_, before * pieces)),
      {.hint = "Lower learning_rate in [optimizer]. What was saved before this step stays "
               "as it is."});
}

std::string TrainingRun::nonfinite_gradient() const {
  if (!replicas_ || !replicas_->divides()) return find_nonfinite_gradient(*pipeline_);
  std::string last;  // of the model's order: nearest to the loss
  for (const std::string& found : ranks_.gather(replicas_->nonfinite_gradient()))
    if (!found.empty()) last = found;
  return last.empty() ? last : "the gradient of " + last + " has values that are infinite or NaN";
}

void TrainingRun::refuse_nonfinite_gradients(double norm) const {
  if (std::isfinite(norm)) return;
  const std::string where = nonfinite_gradient();
  throw Error(
      text("the gradients became infinite or NaN in step ", state_.step + 1, " (epoch ",
           state_.epoch + 1, "): ", where.empty() ? "each is finite, their norm is not" : where),
      {.hint = "Lower learning_rate in [optimizer]. What was saved before this step stays "
               "as it is."});
}

}  // namespace trestle::train
