#include "trestle/train/training_run.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <iostream>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/optim/state.h"
#include "trestle/precision/cpu_support.h"
#include "trestle/train/data_set.h"
#include "trestle/train/environment.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/parameter_groups.h"
#include "trestle/train/run_end.h"

namespace trestle::train {

namespace {

// Slower than fp32 where the CPU has no instructions for it, so nobody would ask for it knowingly.
void note_precision(const recipe::Recipe& recipe, const std::vector<Device>& devices,
                    Progress& progress) {
  const Precision precision = precision::parse_precision(recipe.train.precision);
  if (devices[0].torch.is_cuda() || precision::cpu_supports(precision)) return;
  progress.note(text("this CPU has no instructions for ", recipe.train.precision,
                     ": it computes by way of fp32, more slowly than with precision = \"fp32\""));
}

// What bf16 and fp16 computed is judged and drawn in fp32.
at::Tensor in_float(const at::Tensor& output) {
  const bool half = output.scalar_type() == at::kBFloat16 || output.scalar_type() == at::kHalf;
  return half ? output.to(at::kFloat) : output;
}

std::int64_t steps_in(std::int64_t batches, std::int64_t accumulate) {
  return (batches + accumulate - 1) / accumulate;
}

// Other images, more of them or fewer are drawn in another order: then the first ones have other
// names. A number that JSON keeps exactly.
double mark_of(const data::Batch& first) {
  return static_cast<double>(name_hash(join(first.names, "\n")) >> 11);
}

}  // namespace

TrainingRun::TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks, Data data)
    : recipe_(recipe),
      hooks_(hooks),
      silent_(hooks.progress ? nullptr
                             : make_progress(ProgressStyle::Silent, Colours::Off, std::cout)),
      progress_(hooks.progress ? *hooks.progress : *silent_),
      early_stop_(recipe.train.patience, recipe.train.min_delta) {
  check_training(recipe_, hooks_.additions);
  // A run that goes on has weights of its own.
  const bool begins = data == Data::MakeMissing;
  if (begins) check_initial_weights(recipe_);
  devices_ = open_devices(recipe_);
  nn::Layers model = make_model(recipe_, hooks_.models);
  // With a given balance all mistakes in [pipeline] are found before any data is read or made.
  if (!recipe_.pipeline.balance.empty()) pipeline_ = make_pipeline(recipe_, model, devices_, {});
  recipe::Recipe with_data = recipe_;
  if (data == Data::MustBeThere) with_data.data.synthesize = 0;
  task_ = make_task(with_data, progress_, hooks_.additions);
  // The run goes on with what it began with, whatever appears meanwhile where the recipe looked.
  const std::int64_t synthesize = recipe_.data.synthesize;
  recipe_.data = task_.data;
  recipe_.data.synthesize = synthesize;
  const data::Batch first = *task_.training->epoch(0).next();
  data_mark_ = mark_of(first);
  check_channels(recipe_, first.inputs);
  if (!pipeline_)
    pipeline_ = with_inputs_named(recipe_, first.inputs, [&] {
      return make_pipeline(recipe_, model, devices_, {first.inputs});
    });
  if (begins) load_initial_weights(recipe_, weights(), progress_);
  freeze_parameters(recipe_, *pipeline_);
  optimizers_ = make_optimizers(recipe_, *pipeline_);
  note_precision(recipe_, devices_, progress_);
  if (recipe_.train.predict)
    prediction_ = with_inputs_named(
        recipe_, first.inputs, [&] { return predict_step(recipe_, *pipeline_, task_, first); });
  plan_ = make_plan(recipe_, *pipeline_, model, devices_, task_, prediction_, hooks_.additions);
  rate_.emplace(recipe_.optimizer, RunLength{.epochs = recipe_.train.epochs,
                                             .steps_per_epoch = steps_in(plan_.steps_per_epoch,
                                                                         recipe_.train.accumulate),
                                             .max_steps = recipe_.train.max_steps});
  if (recipe_.train.precision == "fp16") scaler_.emplace();
  state_.seed = static_cast<std::uint64_t>(recipe_.train.seed);
  state_.recipe_hash = recipe::recipe_hash(recipe_);
}

void TrainingRun::begin(const RunFolder& folder) {
  folder_ = folder;
  bests_.emplace(folder_.bests(), recipe_.train.keep_best);
  write_file(folder_.environment(), environment_json(devices_));
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics());
  if (recipe_.train.tensorboard) events_.emplace(folder_.path, 0);
}

void TrainingRun::restore(const RunFolder& folder) {
  folder_ = folder;
  bests_.emplace(folder_.bests(), recipe_.train.keep_best);
  checkpoint::TrainingCheckpoint saved = checkpoint::read_training_checkpoint(folder_.last());
  if (saved.state.recipe_hash != state_.recipe_hash)
    throw UsageError(
        text(folder_.recipe().string(), ": is not the recipe that this run was saved under"),
        {.hint = "Put it back as it was, or start a new run."});
  const auto had = saved.state.numbers.find("training_examples");
  const auto has = static_cast<double>(task_.training->examples());
  if (had != saved.state.numbers.end() && had->second != has)
    throw UsageError(text("the data have ", has, " training examples, and had ", had->second,
                          " when this run was saved"),
                     {.hint = "Put them back as they were, or start a new run."});
  const auto mark = saved.state.numbers.find("data_mark");
  if (mark != saved.state.numbers.end() && mark->second != data_mark_)
    throw UsageError(
        "the data are not those that this run was saved with: its examples have other "
        "names, or there are more or fewer",
        {.hint = "Put them back as they were, or start a new run."});
  checkpoint::copy_into(saved.weights, weights(),
                        (folder_.last() / "weights.safetensors").string());
  for (StageOptimizer& stage : optimizers_)
    optim::load_optimizer_state(*stage.optimizer, stage.names, saved.optimizer);
  state_ = std::move(saved.state);
  put_in(saved.gradients);
  pipeline_->set_step_number(state_.step + (inside_step() ? 1 : 0));  // its number is taken
  auto number = [&](const char* name) {
    const auto found = state_.numbers.find(name);
    return found == state_.numbers.end() ? 0.0 : found->second;
  };
  loss_sum_ = number("loss_sum");
  loss_weight_ = number("loss_weight");
  group_loss_ = number("group_loss");
  learning_rate_ = number("last_learning_rate");
  rate_->load(state_.numbers);
  early_stop_.load(state_.numbers);
  bests_->load(state_.numbers);
  if (scaler_) scaler_->load_state(state_.numbers);
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics(), state_.step, state_.epoch);
  if (recipe_.train.tensorboard) events_.emplace(folder_.path, state_.step);
}

TrainResult TrainingRun::run() {
  watch_ = Stopwatch();
  progress_.plan(plan_);
  while (state_.epoch < recipe_.train.epochs && !has_all_steps() && !early_stop_.stops()) {
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

bool TrainingRun::has_all_steps() const {
  return recipe_.train.max_steps > 0 && state_.step >= recipe_.train.max_steps;
}

bool TrainingRun::inside_step() const {
  return state_.batch % recipe_.train.accumulate != 0 && state_.batch < plan_.steps_per_epoch;
}

bool TrainingRun::stop_asked() const {
  return (hooks_.stop_after_steps > 0 && steps_here_ >= hooks_.stop_after_steps) ||
         (hooks_.should_stop && hooks_.should_stop());
}

TrainingRun::Outcome TrainingRun::validate(EpochReport& report) {
  if (!task_.validation) return Outcome::Finished;
  at::NoGradGuard no_grad;
  nn::Tally loss, metric;
  data::Epoch batches = task_.validation->epoch(0);
  for (data::Batch& batch : batches) {
    const at::Tensor output = in_float(pipeline_->evaluate(batch.inputs).to(at::kCPU));
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
  report.steps = state_.batch;
  report.training_loss = loss_weight_ > 0 ? loss_sum_ / loss_weight_ : 0;
  report.metric_name = task_.metric_name;
  report.synthetic_data = !task_.synthetic.empty();
  report.learning_rate = learning_rate_;
  report.examples_per_second =
      epoch_seconds_ > 0 ? static_cast<double>(epoch_examples_) / epoch_seconds_ : 0;
  report.best = !report.metric || state_.best_epoch < 0 || *report.metric > state_.best_metric;
  draw_picture(report);
  metrics_->add_epoch(report);
  add_events(report);
  judge_epoch(report);
  if (state_.batch == plan_.steps_per_epoch) {  // not where max_steps ended it in its middle
    ++state_.epoch;
    state_.batch = 0;
    loss_sum_ = loss_weight_ = 0;
  }
  save();
  save_views();
  progress_.epoch(report);
  if (early_stop_.stops())
    progress_.note(text("          no better ", task_.metric_name, " for ",
                        early_stop_.bad_epochs(),
                        " epochs: the run ends (patience = ", recipe_.train.patience, ")"));
}

// What follows from how good it was.
void TrainingRun::judge_epoch(EpochReport& report) {
  if (report.best) {
    save_best(report);
    state_.best_epoch = state_.epoch;
    state_.best_metric = report.metric.value_or(0);
  }
  if (!report.metric) return;
  keep_weights(report);
  // Of an epoch that max_steps cuts in two, patience counts its end alone.
  if (state_.batch < plan_.steps_per_epoch) return;
  early_stop_.epoch_ends(*report.metric);
  lower_learning_rate(report);
}

void TrainingRun::lower_learning_rate(const EpochReport& report) {
  const std::optional<double> rate = rate_->epoch_ends(report.metric);
  if (!rate) return;
  progress_.note(text("          no better ", task_.metric_name, " for ",
                      recipe_.optimizer.plateau_patience + 1, " epochs: the learning rate is now ",
                      *rate));
}

void TrainingRun::add_events(const EpochReport& report) {
  if (!events_) return;
  EventFile::Scalars scalars = {{"epoch/training_loss", report.training_loss},
                                {"epoch/examples_per_second", report.examples_per_second}};
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
