#include "trestle/train/training_run.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/optim/state.h"
#include "trestle/precision/cpu_support.h"
#include "trestle/train/batch_stream.h"
#include "trestle/train/metric_direction.h"
#include "trestle/train/data_set.h"
#include "trestle/train/deepspeed_options.h"
#include "trestle/train/environment.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/validator.h"
#include "trestle/train/parameter_groups.h"
#include "trestle/train/run_end.h"
#include "trestle/train/run_paths.h"

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

}  // namespace

TrainingRun::TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks,
                         const RunFolder* going_on)
    : ranks_(hooks.world),
      recipe_(recipe),
      deepspeed_(recipe::deepspeed_config_of(recipe)),
      hooks_(hooks),
      silent_(hooks.progress ? nullptr
                             : make_progress(ProgressStyle::Silent, Colours::Off, std::cout)),
      progress_(hooks.progress ? *hooks.progress : *silent_),
      early_stop_(recipe.train.patience, recipe.train.min_delta) {
  refuse_other_recipes();
  ranks_.lay_out(recipe_.mesh);
  check_training(recipe_, hooks_.user_parts);
  // A run that goes on has weights of its own.
  const bool begins = going_on == nullptr;
  if (begins) check_initial_weights(recipe_);
  std::vector<Device> devices;
  ranks_.in_turn([&] { devices = open_devices(recipe_); });
  devices_ = devices_of_rank(devices, ranks_);
  nn::Layers model = make_model(recipe_, hooks_.models);
  // With a given balance all mistakes in [pipeline] are found before any data is read or made.
  if (ranks_.replicas() > 1)
    replicas_ = std::make_shared<StageReplicas>(ranks_.replica_groups(), shard_options());
  if (!recipe_.pipeline.balance.empty()) pipeline_ = pipeline_of(model, {});
  ranks_.first_then_others([&] { open_data(going_on); });
  check_parts(recipe_, task_.training->examples());
  std::optional<data::Batch> first;
  if (const auto part = ranks_.reads()) first = task_.training->read(0, 0, *part, ranks_.share());
  data_mark_ = data_mark_of(first);
  if (ranks_.is_first()) check_channels(recipe_, first->inputs);
  set_up_model(model, first);
  if (begins) load_weights_over_ranks();
  freeze_over_ranks();
  note_precision(recipe_, devices_, progress_);
  if (recipe_.train.predict) predict(first);  // before any parameter is on some ranks only
  if (replicas_) replicas_->take(*pipeline_, ranks_.mesh());
  optimizers_ = make_optimizers(recipe_, *pipeline_, replicas_.get());
  plan_ = make_plan(recipe_, *pipeline_, model, devices_, task_, prediction_, hooks_.user_parts);
  add_ranks(devices);
  rate_.emplace(recipe_.optimizer, RunLength{.epochs = recipe_.train.epochs,
                                             .steps_per_epoch = plan_.optimizer_steps_per_epoch(),
                                             .max_steps = recipe_.train.max_steps});
  if (deepspeed_ && deepspeed_->schedule)
    rate_->follow(deepspeed::rate_options(*deepspeed_->schedule));
  if (recipe_.train.precision == "fp16")
    scaler_.emplace(deepspeed_ ? deepspeed::scaler_options(*deepspeed_)
                               : precision::GradientScalerOptions());
  state_.seed = static_cast<std::uint64_t>(recipe_.train.seed);
  state_.recipe_hash = recipe::recipe_hash(recipe_);
}

ShardOptions TrainingRun::shard_options() const {
  ShardOptions options{.unused_parameters = UnusedParameters::Find};
  if (deepspeed_) options = deepspeed::shard_options(*deepspeed_);
  options.level = ranks_.level();
  options.precision.parameters.reset();  // computed by autocast
  if (options.level == ShardLevel::None) options.shards_on_cpu = false;
  return options;
}

void TrainingRun::predict(const std::optional<data::Batch>& first) {
  const data::Batch batch = first.value_or(data::Batch());
  const auto step = [&] { return predict_step(recipe_, *pipeline_, task_, batch, ranks_); };
  prediction_ = batch.inputs.defined() ? with_inputs_named(recipe_, batch.inputs, step) : step();
}

std::unique_ptr<Pipeline> TrainingRun::pipeline_of(const nn::Layers& model,
                                                   const nn::Values& sample) const {
  return make_pipeline(recipe_, model, devices_, sample, ranks_.pipeline_group(),
                       ranks_.replica_groups().all, replicas_);
}

void TrainingRun::set_up_model(const nn::Layers& model, const std::optional<data::Batch>& first) {
  if (pipeline_) return;
  if (!ranks_.is_first()) {  // which alone has inputs to try the model with
    pipeline_ = pipeline_of(model, {});
    return;
  }
  pipeline_ = with_inputs_named(recipe_, first->inputs,
                                [&] { return pipeline_of(model, {first->inputs}); });
}

// The run goes on with what it began with, whatever appears meanwhile where the recipe looked.
void TrainingRun::open_data(const RunFolder* going_on) {
  if (going_on != nullptr) {
    recipe::Recipe with_data = seen_from_here(*going_on, recipe_);
    with_data.data.synthesize = 0;
    task_ = make_task(with_data, progress_, hooks_.user_parts);
    return;
  }
  task_ = make_task(recipe_, progress_, hooks_.user_parts, hooks_.on_synthesized);
  const std::int64_t synthesize = recipe_.data.synthesize;
  recipe_.data = task_.data;
  recipe_.data.synthesize = synthesize;
}

void TrainingRun::begin(const RunFolder& folder) {
  folder_ = folder;
  bests_.emplace(folder_.bests(), recipe_.train.keep_best);
  if (!ranks_.reports()) return;
  write_file(folder_.environment(),
             environment_json(devices_, current_directory_from(folder_.path)));
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics());
  if (recipe_.train.tensorboard) events_.emplace(folder_.path, 0);
}

void TrainingRun::restore(const RunFolder& folder) {
  folder_ = folder;
  bests_.emplace(folder_.bests(), recipe_.train.keep_best);
  const checkpoint::SavedTraining saved(folder_.last());
  check_same_run(saved.state());
  put_in(saved);
  state_ = saved.state();
  batch_ = batches_done(state_);
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
  epoch_seconds_before_ = number("epoch_seconds");
  plan_.steps_done = state_.step;
  if (!ranks_.reports()) return;
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics(), state_.step, state_.epoch);
  if (recipe_.train.tensorboard) events_.emplace(folder_.path, state_.step);
}

void TrainingRun::check_same_run(const checkpoint::TrainState& saved) const {
  if (saved.recipe_hash != state_.recipe_hash)
    throw UsageError(
        text(folder_.recipe().string(), ": is not the recipe that this run was saved under"),
        {.hint = "Put it back as it was, or start a new run."});
  const auto had = saved.numbers.find("training_examples");
  const auto has = static_cast<double>(task_.training->examples());
  if (had != saved.numbers.end() && had->second != has)
    throw UsageError(text("the data have ", has, " training examples, and had ", had->second,
                          " when this run was saved"),
                     {.hint = "Put them back as they were, or start a new run."});
  const auto mark = saved.numbers.find("data_mark");
  if (mark != saved.numbers.end() && mark->second != data_mark_)
    throw UsageError(
        "the data are not those that this run was saved with: other examples come first",
        {.hint = "Put them back as they were, or start a new run."});
  // The learning rate is followed step by step to where the run stands.
  const std::int64_t in_epoch = plan_.optimizer_steps_per_epoch();
  if (saved.step > (saved.epoch + 1) * in_epoch)
    throw FormatError(text("the run stands at step ", saved.step, " after ", saved.epoch,
                           " epochs, and an epoch has ", in_epoch, " steps"),
                      {.file = folder_.last().string()});
}

// The last batch of an epoch may be a smaller one.
std::int64_t TrainingRun::samples_done() const {
  return std::min(batch_ * recipe_.train.batch, task_.training->examples());
}

// Of all replicas together.
std::int64_t TrainingRun::examples_of(const data::Batch& batch, const data::Loader& loader) const {
  if (ranks_.replicas() == 1) return batch.size();
  return std::min(recipe_.train.batch, loader.examples() - batch.index * recipe_.train.batch);
}

std::int64_t TrainingRun::batches_done(const checkpoint::TrainState& saved) const {
  const std::int64_t size = recipe_.train.batch, all = task_.training->examples();
  if (saved.batches) return *saved.batches;
  if (saved.samples < all && saved.samples % size == 0) return saved.samples / size;
  if (saved.samples == all) return plan_.steps_per_epoch;
  throw FormatError(text("the run stands at sample ", saved.samples, " of an epoch of ", all,
                         ", which is not between two batches of ", size),
                    {.file = folder_.last().string()});
}

TrainResult TrainingRun::run() {
  watch_ = Stopwatch();
  plan_.folder = folder_.path;
  progress_.plan(plan_);
  while (state_.epoch < recipe_.train.epochs && !has_all_steps() && !early_stop_.stops()) {
    epoch_watch_ = Stopwatch();
    EpochReport report;
    if (train_epoch() == Outcome::Stopped || validate(report) == Outcome::Stopped) {
      save();
      save_views();
      progress_.done(result(false));
      return result(false);
    }
    report.seconds = seconds_of_epoch();
    const Stopwatch watch;
    close_epoch(report);
    times_.closing.add(watch.seconds());
  }
  progress_.done(result(true));
  return result(true);
}

bool TrainingRun::has_all_steps() const {
  return recipe_.train.max_steps > 0 && state_.step >= recipe_.train.max_steps;
}

bool TrainingRun::inside_step() const {
  return batch_ % recipe_.train.accumulate != 0 && batch_ < plan_.steps_per_epoch;
}

// Once for all ranks, whichever of them was asked.
bool TrainingRun::stop_asked() const {
  return ranks_.any((hooks_.stop_after_steps > 0 && steps_here_ >= hooks_.stop_after_steps) ||
                    (hooks_.should_stop && hooks_.should_stop()));
}

TrainingRun::Outcome TrainingRun::validate(EpochReport& report) {
  if (!task_.validation) return Outcome::Finished;
  Scores judged;
  const Stopwatch watch;
  double before = 0;
  std::int64_t done = 0, examples = 0;
  BatchStream batches(*task_.validation, 0, 0, ranks_.reads(), ranks_.share());
  Scores own;
  AllRows all_rows;
  if (ranks_.replicas() > 1)
    all_rows = [&](const at::Tensor& rows) { return ranks_.all_rows(rows); };
  while (const std::optional<data::Batch> next = batches.next()) {
    const data::Batch& batch = *next;
    const std::int64_t all = examples_of(batch, *task_.validation);
    at::Tensor output;  // of fewer examples than replicas some have none
    if (ranks_.replicas() == 1 || ranks_.share_of(all) > 0) {
      output = own.add(*pipeline_, task_, batch, all_rows);
    } else {
      replicas_->evaluate_nothing();
      if (ranks_.is_last()) Scores::add_nothing(task_, all_rows);
    }
    judged = own;
    share(judged);
    if (batch.index == 0 && ranks_.replica() == 0 && recipe_.train.pictures && output.defined()) {
      const std::int64_t rows = std::min<std::int64_t>(batch.size(), 32);
      shown_output_ = output.narrow(0, 0, rows).clone();
      const at::Tensor inputs =
          ranks_.is_first()
              ? batch.inputs
              : task_.validation->read(0, 0, data::Part::Input, ranks_.share()).inputs;
      shown_ = data::Batch{inputs.narrow(0, 0, rows).clone(),
                           batch.targets.narrow(0, 0, rows).clone(), batch.names, 0};
    }
    examples += all;
    const double took = watch.seconds();
    times_.validation.add(took - before);
    before = took;
    report_validation(++done, judged.loss.mean(), static_cast<double>(examples) / took);
    if (stop_asked()) return Outcome::Stopped;
  }
  report.validation_loss = judged.loss.mean();
  report.metric = judged.metric.mean();
  return Outcome::Finished;
}

void TrainingRun::close_epoch(EpochReport& report) {
  report.epoch = state_.epoch + 1;
  report.epochs = recipe_.train.epochs;
  report.step = state_.step;
  report.steps = batch_;
  report.training_loss = loss_weight_ > 0 ? loss_sum_ / loss_weight_ : 0;
  report.metric_name = task_.metric_name;
  report.synthetic_data = !task_.synthetic.empty();
  report.learning_rate = learning_rate_;
  report.examples_per_second =
      epoch_seconds_ > 0 ? static_cast<double>(epoch_examples_) / epoch_seconds_ : 0;
  report.best =
      !report.metric || state_.best_epoch < 0 || is_better(*report.metric, state_.best_metric);
  draw_picture(report);
  if (metrics_) metrics_->add_epoch(report);
  add_events(report);
  judge_epoch(report);
  if (batch_ == plan_.steps_per_epoch) {  // not where max_steps ended it in its middle
    ++state_.epoch;
    batch_ = 0;
    loss_sum_ = loss_weight_ = 0;
    epoch_seconds_before_ = 0;
  }
  save();
  save_views();
  progress_.epoch(report);
  if (early_stop_.stops())
    progress_.note(text("          no better ", task_.metric_name, " for ",
                        counted(early_stop_.bad_epochs(), "epoch"),
                        ": the run ends (patience = ", recipe_.train.patience, ")"));
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
  if (batch_ < plan_.steps_per_epoch) return;
  early_stop_.epoch_ends(*report.metric);
  lower_learning_rate(report);
}

void TrainingRun::lower_learning_rate(const EpochReport& report) {
  const std::optional<double> rate = rate_->epoch_ends(report.metric);
  if (!rate) return;
  progress_.note(text("          no better ", task_.metric_name, " for ",
                      counted(recipe_.optimizer.plateau_patience + 1, "epoch"),
                      ": the learning rate is now ", *rate));
}

}  // namespace trestle::train
