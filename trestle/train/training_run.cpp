#include "trestle/train/training_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"
#include "trestle/pipeline/find_nonfinite.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/train/deepspeed_checkpoint.h"
#include "trestle/train/language/model_files.h"
#include "trestle/train/language/model_flops.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/nonfinite_data.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/run_folder/metric_direction.h"
#include "trestle/train/run_folder/run_end.h"
#include "trestle/train/run_folder/run_paths.h"
#include "trestle/train/run_folder/saved_cut.h"
#include "trestle/view/chrome_trace.h"
#include "trestle/view/labels.h"
#include "trestle/view/svg.h"

namespace trestle::train {
namespace {

// The next `most` batches, or those that are left. They are read ahead because the share of each
// depends on all of them.
std::vector<data::Batch> next_group(BatchStream& batches, std::int64_t most) {
  std::vector<data::Batch> group;
  while (static_cast<std::int64_t>(group.size()) < most) {
    std::optional<data::Batch> batch = batches.next();
    if (!batch) break;
    group.push_back(std::move(*batch));
  }
  return group;
}

// Whether a target is not ignored; ranks without targets have none.
bool has_target(const at::Tensor& targets) {
  if (!targets.defined()) return false;
  return targets.scalar_type() != at::kLong || targets.ne(nn::ignored_target).any().item<bool>();
}

double number_or_0(const checkpoint::TrainState& state, const char* name) {
  const auto found = state.numbers.find(name);
  return found == state.numbers.end() ? 0.0 : found->second;
}

}  // namespace

TrainingRun::TrainingRun(const recipe::Recipe& recipe, const TrainHooks& hooks,
                         const RunFolder* resumed)
    : hooks_(hooks),
      setup_(recipe, hooks, resumed),
      updater_(setup_),
      reporter_(setup_.progress),
      early_stop_(recipe.train.patience, recipe.train.min_delta) {
  state_.seed = static_cast<std::uint64_t>(setup_.recipe.train.seed);
  state_.recipe_hash = recipe::recipe_hash(setup_.recipe);
  data_content_ = static_cast<double>(setup_.task.training->dataset().content_hash() >> 11);
  if (!hooks.models.contains(setup_.recipe.model.name))
    flops_per_token_ = flops_per_token(setup_.recipe);
  if (resumed == nullptr) setup_.check_metric();
  setup_.first.reset();
}

void TrainingRun::begin(const RunFolder& folder) {
  if (setup_.ranks.reports())
    write_file(folder.environment(),
               environment_json(setup_.devices, current_directory_from(folder.path)));
  if (setup_.ranks.reports()) write_model_files(setup_.recipe, folder.path);
  open_folder(folder);
  open_reports(RunReporter::Files::New);
}

void TrainingRun::restore(const RunFolder& folder) {
  folder_ = folder;
  const checkpoint::SavedTraining saved(folder.last(), padded_rows(setup_.recipe),
                                        setup_.slices.parameters);
  check_same_run(saved.state());
  state_ = saved.state();
  open_folder(folder);
  checkpointer_->load(saved);
  epoch_.batches = batches_done(state_);
  // A step that was saved between two of its batches keeps its number.
  const std::int64_t batches_of_step =
      is_inside_step() ? epoch_.batches % setup_.recipe.train.accumulate : 0;
  setup_.pipeline->set_step_number(state_.step + (is_inside_step() ? 1 : 0),
                                   batches_of_step * setup_.recipe.train.batch);
  epoch_.loss_sum = number_or_0(state_, "loss_sum");
  epoch_.loss_weight = number_or_0(state_, "loss_weight");
  epoch_.step_loss = number_or_0(state_, "group_loss");
  epoch_.seconds_before = number_or_0(state_, "epoch_seconds");
  updater_.load(state_.numbers);
  early_stop_.load(state_.numbers);
  setup_.plan.steps_done = state_.step;
  open_reports(RunReporter::Files::Resumed);
}

void TrainingRun::open_folder(const RunFolder& folder) {
  folder_ = folder;
  checkpointer_.emplace(setup_.ranks,
                        Checkpointer::Model{.name = setup_.recipe.model.name,
                                            .pipeline = *setup_.pipeline,
                                            .replicas = setup_.replicas.get(),
                                            .optimizers = setup_.optimizers,
                                            .padding = padded_rows(setup_.recipe),
                                            .slices = setup_.slices},
                        folder, setup_.recipe.train.keep_best);
}

void TrainingRun::open_reports(RunReporter::Files files) {
  if (!setup_.ranks.reports()) return;
  reporter_.open(folder_, files, {state_.step, state_.epoch},
                 setup_.recipe.train.tensorboard ? RunReporter::Tensorboard::On
                                                 : RunReporter::Tensorboard::Off);
}

void TrainingRun::check_same_run(const checkpoint::TrainState& saved) const {
  if (saved.recipe_hash != state_.recipe_hash)
    throw UsageError(
        text(folder_.recipe().string(), ": is not the recipe that this run was saved with"),
        {.hint = "Restore the recipe, or start a new run."});
  const auto saved_examples = saved.numbers.find("training_examples");
  const auto examples = static_cast<double>(setup_.task.training->examples());
  if (saved_examples != saved.numbers.end() && saved_examples->second != examples)
    throw UsageError(text("the data have ", examples, " training examples, and had ",
                          saved_examples->second, " when this run was saved"),
                     {.hint = "Restore the data, or start a new run."});
  const auto mark = saved.numbers.find("data_mark");
  if (mark != saved.numbers.end() && mark->second != setup_.data_mark)
    throw UsageError(
        "the data are not those that this run was saved with: other examples come first",
        {.hint = "Restore the data, or start a new run."});
  const double saved_content = number_or_0(saved, "data_content");
  if (saved_content != 0 && data_content_ != 0 && saved_content != data_content_)
    throw UsageError(
        "the data are not those that this run was saved with: the examples have other values",
        {.hint = "Restore the data, or start a new run."});
  // A learning-rate schedule is computed step by step up to the saved one.
  const std::int64_t in_epoch = setup_.plan.optimizer_steps_per_epoch();
  if (saved.step > (saved.epoch + 1) * in_epoch)
    throw FormatError(text("the run stands at step ", saved.step, " after ", saved.epoch,
                           " epochs, and an epoch has ", in_epoch, " steps"),
                      {.file = folder_.last().string()});
}

std::int64_t TrainingRun::batches_done(const checkpoint::TrainState& saved) const {
  const std::int64_t size = setup_.recipe.train.batch, all = setup_.task.training->examples();
  if (saved.batches) return *saved.batches;
  if (saved.samples < all && saved.samples % size == 0) return saved.samples / size;
  if (saved.samples == all) return setup_.plan.steps_per_epoch;
  throw FormatError(text("the run stands at sample ", saved.samples, " of an epoch of ", all,
                         ", which is not between two batches of ", size),
                    {.file = folder_.last().string()});
}

TrainResult TrainingRun::run() {
  watch_ = Stopwatch();
  setup_.plan.folder = folder_.path;
  Progress& progress = reporter_.progress();
  progress.plan(setup_.plan);
  while (state_.epoch < setup_.recipe.train.epochs && !has_all_steps() && !early_stop_.stops()) {
    epoch_.watch = Stopwatch();
    EpochReport report;
    if (train_epoch() == Outcome::Stopped || validate(report) == Outcome::Stopped) {
      save();
      save_views();
      progress.done(result(Outcome::Stopped));
      return result(Outcome::Stopped);
    }
    report.seconds = epoch_seconds();
    const Stopwatch watch;
    close_epoch(report);
    reporter_.times().closing.add(watch.seconds());
  }
  if (skipped_steps_ > 0)
    progress.note(text("fp16      ", skipped_steps_, " of ", timer_.steps(),
                       " steps were skipped, because their gradients overflowed",
                       skipped_steps_ == timer_.steps()
                           ? ": no weight changed. The loss scale halves with each of them; train "
                             "for more steps, or begin with a smaller scale"
                           : ""));
  progress.done(result(Outcome::Finished));
  return result(Outcome::Finished);
}

bool TrainingRun::has_all_steps() const {
  const std::int64_t most = setup_.recipe.train.max_steps;
  return most > 0 && state_.step >= most;
}

bool TrainingRun::is_inside_step() const {
  return epoch_.batches % setup_.recipe.train.accumulate != 0 &&
         epoch_.batches < setup_.plan.steps_per_epoch;
}

// The same on all ranks: a rank that was told to stop stops all ranks.
bool TrainingRun::must_stop() const {
  const bool mine = (hooks_.stop_after_steps > 0 && timer_.steps() >= hooks_.stop_after_steps) ||
                    (hooks_.should_stop && hooks_.should_stop());
  return comm::with_purpose([] { return "while the ranks agreed whether to stop"; },
                            [&] { return setup_.ranks.any(mine); });
}

TrainingRun::Outcome TrainingRun::train_epoch() {
  const RunRanks& ranks = setup_.ranks;
  setup_.pipeline->train();
  PeakMemory::reset(setup_.devices);
  epoch_.training_seconds = 0;
  epoch_.training_examples = 0;
  epoch_.has_targets = false;
  const Stopwatch watch;
  const std::int64_t accumulate = setup_.recipe.train.accumulate;
  // A run that was saved inside of a step has trained on some of the step's batches.
  std::int64_t done = is_inside_step() ? epoch_.batches % accumulate : 0;
  BatchStream batches(*setup_.task.training, state_.epoch, epoch_.batches - done, ranks.reads(),
                      ranks.share());
  for (auto group = next_group(batches, accumulate); !group.empty() && !has_all_steps();
       group = next_group(batches, accumulate)) {
    const std::vector<double> shares = shares_of(group);
    for (std::size_t i = static_cast<std::size_t>(std::exchange(done, 0)); i < group.size(); ++i) {
      const data::Batch batch = std::exchange(group[i], {});
      const bool ends_step = i + 1 == group.size();
      train_batch(batch, shares[i],
                  ends_step ? StepOptions::Update::Now : StepOptions::Update::Later);
      reporter_.times().training.add(watch.seconds() - epoch_.training_seconds);
      epoch_.training_seconds = watch.seconds();
      const bool stop = must_stop();
      if (epoch_.batches == setup_.plan.steps_per_epoch || stop || has_all_steps()) take_timeline();
      if (stop) {
        peaks_.update(*setup_.pipeline, setup_.plan, ranks);
        return Outcome::Stopped;
      }
      const std::int64_t save_every = setup_.recipe.train.save_every;
      if (ends_step && save_every > 0 && state_.step % save_every == 0) save();
    }
  }
  peaks_.update(*setup_.pipeline, setup_.plan, ranks);
  refuse_epoch_without_targets();
  return Outcome::Finished;
}

// A loss without targets is 0, which would seem perfect.
void TrainingRun::refuse_epoch_without_targets() const {
  if (setup_.ranks.any(epoch_.has_targets || epoch_.training_examples == 0)) return;
  throw UsageError(text("every target of epoch ", state_.epoch + 1, " is ignored (",
                        nn::ignored_target, "): the model learned nothing"),
                   {.hint = "Check the targets, and 'mask_ignore' in [data]."});
}

// Each batch's share of its step's gradients: its weight over the sum of the group's.
std::vector<double> TrainingRun::shares_of(const std::vector<data::Batch>& group) const {
  if (group.size() <= 1) return {1};
  std::vector<double> weights(group.size());
  for (std::size_t i = 0; i < group.size() && setup_.ranks.is_last(); ++i)
    weights[i] = weight_of(setup_.task, group[i]);
  weights = setup_.ranks.sum_of_last(std::move(weights));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight = all > 0 ? weight / all : 0;
  return weights;
}

std::int64_t TrainingRun::micro_batches_before() const {
  return epoch_.batches % setup_.recipe.train.accumulate * micro_batches_of(setup_.recipe);
}

void TrainingRun::train_batch(const data::Batch& batch, double share, StepOptions::Update update) {
  const bool ends_step = update == StepOptions::Update::Now;
  if (ends_step) updater_.prepare(place());
  if (!setup_.ranks.alone())  // a pipeline over ranks reports each action in addition
    setup_.ranks.world().report_status(text("began step ", state_.step + 1));
  const Stopwatch watch;
  StepOptions options = updater_.options_of_batch(update);
  options.gradient_scale = share;
  options.first_micro_batch = micro_batches_before() * setup_.ranks.replicas();
  const auto step = [&] {
    return setup_.pipeline->step(batch.inputs, batch.targets, setup_.task.loss, options);
  };
  const StepResult done =
      batch.inputs.defined() ? with_inputs_named(setup_.recipe, batch.inputs, step) : step();
  refuse_nonfinite_loss(done.loss, batch);
  ++epoch_.batches;
  timer_.add_batch(watch.seconds());
  epoch_.loss_sum += done.loss * done.weight;
  epoch_.loss_weight += done.weight;
  epoch_.step_loss += done.loss * share;
  epoch_.training_examples +=
      setup_.ranks.examples_of(batch, setup_.recipe.train.batch, *setup_.task.training);
  epoch_.has_targets = epoch_.has_targets || has_target(batch.targets);
  report_batch(batch, done.loss);
  if (ends_step) finish_step(done);
}

void TrainingRun::finish_step(const StepResult& done) {
  updater_.finish(done, place());
  skipped_steps_ += done.stepped ? 0 : 1;
  timer_.add_step(timer_.samples_update()
                      ? std::optional(schedule::optimizer_seconds(setup_.pipeline->timeline()))
                      : std::nullopt);
  ++state_.step;
  StepMetrics metrics = {.step = state_.step,
                         .epoch = state_.epoch + 1,
                         .loss = std::exchange(epoch_.step_loss, 0),
                         .learning_rate = updater_.last_learning_rate(),
                         .gradient_norm = done.gradient_norm.value_or(0)};
  for (const Device& device : setup_.devices)
    if (!device.torch.is_cpu())
      metrics.peaks.emplace_back(device_name(device.torch), memory_usage(device.torch).peak);
  reporter_.step(metrics);
}

void TrainingRun::refuse_nonfinite_loss(double loss, const data::Batch& batch) const {
  if (std::isfinite(loss)) return;
  const auto whole =
      setup_.replicas ? setup_.replicas->whole() : std::vector<ShardedParameters::Unsharded>();
  const std::string found =
      find_nonfinite({batch.inputs}, *setup_.pipeline, micro_batches_before());
  throw Error(text("the loss became ", loss, " in step ", state_.step + 1, " (epoch ",
                   state_.epoch + 1, "): ", found),
              {.hint = hint_for_nonfinite(found, batch)});
}

// All ranks have the same `found`.
std::string TrainingRun::hint_for_nonfinite(const std::string& found,
                                            const data::Batch& batch) const {
  const std::string data = nonfinite_data(batch, setup_.ranks);
  if (!data.empty()) {
    std::string sentence = data;
    sentence[0] = 'T';
    return sentence + ". " + hint_for_nonfinite_data;
  }
  if (found.starts_with("parameter ") && state_.step == 0)
    return "The weights have these values from the start: check 'weights' in [model].";
  return "Lower learning_rate in [optimizer]. Checkpoints saved before this step are intact.";
}

TrainingRun::Outcome TrainingRun::validate(EpochReport& report) {
  const Task& task = setup_.task;
  if (!task.validation) return Outcome::Finished;
  const RunRanks& ranks = setup_.ranks;
  const Stopwatch watch;
  double before = 0;
  Validator validator(ranks, task, setup_.recipe.train.batch, *setup_.pipeline,
                      setup_.replicas.get());
  const auto scores = validator.run([&](const Validator::Batch& done) {
    refuse_nonfinite_validation(done.scores.loss.sum, done.batch, ranks, *setup_.pipeline,
                                setup_.replicas.get());
    const bool is_shown = done.batch.index == 0 && ranks.replica() == 0;
    if (is_shown && setup_.recipe.train.pictures && done.output.defined())
      picture_.keep(ranks.is_first()
                        ? done.batch.inputs
                        : task.validation->read(0, 0, data::Part::Input, ranks.share()).inputs,
                    done.batch, done.output);
    const double took = watch.seconds();
    reporter_.times().validation.add(took - std::exchange(before, took));
    report_validation(done, took);
    return must_stop() ? Validator::Next::Stop : Validator::Next::Continue;
  });
  if (!scores) return Outcome::Stopped;
  report.validation_loss = scores->loss.mean();
  report.metric = scores->metric.mean();
  return Outcome::Finished;
}

void TrainingRun::close_epoch(EpochReport& report) {
  report.epoch = state_.epoch + 1;
  report.epochs = setup_.recipe.train.epochs;
  report.step = state_.step;
  report.steps = epoch_.batches;
  report.training_loss = epoch_.loss_weight > 0 ? epoch_.loss_sum / epoch_.loss_weight : 0;
  report.metric_name = setup_.task.metric_name;
  report.tokens_per_example = tokens_of_example(setup_.recipe);
  report.flops_per_token = flops_per_token_;
  report.peak_flops = 1e12 * setup_.recipe.train.peak_tflops;
  report.synthetic_data = !setup_.task.synthetic.empty();
  report.learning_rate = updater_.last_learning_rate();
  report.examples_per_second =
      epoch_.training_seconds > 0
          ? static_cast<double>(epoch_.training_examples) / epoch_.training_seconds
          : 0;
  report.best =
      !report.metric || state_.best_epoch < 0 || is_better(*report.metric, state_.best_metric);
  draw_picture(report);
  reporter_.epoch(report);
  rate_epoch(report);
  if (epoch_.batches == setup_.plan.steps_per_epoch) {  // not where max_steps ended the epoch early
    ++state_.epoch;
    epoch_ = Epoch();
  }
  save();
  save_views();
  write_sample(report);  // takes long over sharded ranks: the epoch is saved before
  Progress& progress = reporter_.progress();
  progress.epoch(report);
  if (early_stop_.stops())
    progress.note(text("          no better ", setup_.task.metric_name, " for ",
                       counted(early_stop_.bad_epochs(), "epoch"),
                       ": the run ends (patience = ", setup_.recipe.train.patience, ")"));
}

// Saves the best weights, counts epochs without improvement and lowers the learning rate.
void TrainingRun::rate_epoch(EpochReport& report) {
  if (report.best) {
    checkpointer_->save_best(report);
    state_.best_epoch = state_.epoch;
    state_.best_metric = report.metric.value_or(0);
  }
  if (!report.metric) return;
  checkpointer_->keep_weights(report);
  // An epoch that max_steps cut in two counts once for patience, at its end.
  if (epoch_.batches < setup_.plan.steps_per_epoch) return;
  early_stop_.epoch_ends(*report.metric);
  lower_learning_rate(report);
}

void TrainingRun::lower_learning_rate(const EpochReport& report) {
  const std::optional<double> rate = updater_.epoch_ends(report.metric);
  if (!rate) return;
  reporter_.progress().note(text("          no better ", setup_.task.metric_name, " for ",
                                 counted(setup_.recipe.optimizer.plateau_patience + 1, "epoch"),
                                 ": the learning rate is now ", *rate));
}

void TrainingRun::save() {
  state_.numbers = {{"training_examples", static_cast<double>(setup_.task.training->examples())},
                    {"data_mark", setup_.data_mark},
                    {"data_content", data_content_},
                    {"loss_sum", epoch_.loss_sum},
                    {"loss_weight", epoch_.loss_weight},
                    {"group_loss", epoch_.step_loss},
                    {"epoch_seconds", epoch_.batches == 0 ? 0 : epoch_seconds()}};
  save_cut(setup_.plan.balance, state_.numbers);
  updater_.save(state_.numbers);
  early_stop_.save(state_.numbers);
  // The last batch of an epoch may have fewer examples.
  state_.samples =
      std::min(epoch_.batches * setup_.recipe.train.batch, setup_.task.training->examples());
  state_.batches.reset();
  checkpointer_->save(
      state_, is_inside_step() ? Checkpointer::Gradients::Saved : Checkpointer::Gradients::None);
  // DeepSpeed's folder has no place for the gradients of a step's earlier batches.
  if (!setup_.recipe.train.deepspeed_checkpoints || is_inside_step()) return;
  const double next_rate = updater_.learning_rate_at({state_.step, state_.epoch});
  with_saved_state_named(folder_, setup_.ranks,
                         [&] { write_deepspeed_checkpoint(setup_, folder_, state_, next_rate); });
}

// Pictures and samples are no results: a full disk must not end the training for their sake.
// Metrics and checkpoints that cannot be written still end it.
// Returns the reason, or "" if all was written.
std::string TrainingRun::why_unwritten(const std::function<void()>& write) const {
  try {
    write();
  } catch (const FileError& error) {
    return error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    return text(error.path1().string(), ": ", error.code().message());
  }
  return "";
}

void TrainingRun::warn_unwritten(const char* what, const std::string& why) {
  reporter_.progress().note(
      text("warning   ", what, " was not written, the training continues: ", why));
}

void TrainingRun::take_timeline() {
  measured_ = setup_.pipeline->gather_timeline();
  if (!setup_.prediction) return;
  const auto& hosts = setup_.prediction->timeline.host_of_rank;
  if (!hosts.empty() && hosts.size() == static_cast<std::size_t>(measured_.rank_count))
    add_measured_crossings(&measured_, hosts);
}

void TrainingRun::save_views() {
  if (measured_.events.empty() || !setup_.ranks.reports()) return;
  std::vector<schedule::Timeline> panels;
  if (setup_.prediction) panels.push_back(setup_.prediction->timeline);
  panels.push_back(measured_);
  const std::string& name = setup_.recipe.name;
  const std::string why = why_unwritten([&] {
    write_file(folder_.timeline(), view::to_chrome_trace(panels));
    if (view::cell_count(panels) <= view::most_cells)
      write_file(folder_.timeline_picture(), view::to_svg(panels, {.title = name}));
    write_file(folder_.curve(), draw_curves(read_epochs(folder_.metrics()), name));
  });
  if (!why.empty()) warn_unwritten("a picture", why);
}

// The last rank has the output and draws it. All ranks learn where.
void TrainingRun::draw_picture(EpochReport& report) {
  if (!setup_.task.validation || !setup_.recipe.train.pictures) return;
  const std::filesystem::path file = folder_.picture(report.epoch);
  bool drawn = false;
  const std::string why =
      why_unwritten([&] { drawn = picture_.draw(file, setup_.task, setup_.recipe.name, report); });
  if (setup_.ranks.any(drawn)) report.picture = file;
  // The first rank prints the warning, and the last one may have the reason.
  if (setup_.ranks.any(!why.empty()))
    warn_unwritten("a picture", why.empty() ? file.string() : why);
}

void TrainingRun::write_sample(EpochReport& report) {
  if (!setup_.sample || !setup_.sample->can_write()) return;
  report.sample = setup_.sample->write(*setup_.pipeline, setup_.replicas.get(), setup_.ranks,
                                       [this] { return must_stop(); });
  if (!setup_.ranks.reports()) return;
  const std::filesystem::path file = folder_.sample(report.epoch);
  const std::string why = why_unwritten([&] {
    std::filesystem::create_directories(file.parent_path());
    write_file(file, report.sample + "\n");
  });
  if (!why.empty()) warn_unwritten("the sample of text", why);
}

// The work that the run has left, unless something ends it early. `validated`: batches of this
// epoch's validation that are done.
TimeLeft::Work TrainingRun::work_left(std::int64_t validated) const {
  const std::int64_t per_epoch = setup_.plan.steps_per_epoch;
  std::int64_t all = setup_.recipe.train.epochs * per_epoch;  // batches of the whole run
  if (const std::int64_t most = setup_.recipe.train.max_steps; most > 0) {
    const std::int64_t steps = setup_.plan.optimizer_steps_per_epoch();
    all = std::min(all, most / steps * per_epoch + most % steps * setup_.recipe.train.accumulate);
  }
  const std::int64_t batches =
      std::max<std::int64_t>(all - state_.epoch * per_epoch - epoch_.batches, 0);
  const std::int64_t closings = (epoch_.batches + batches + per_epoch - 1) / per_epoch;
  const std::int64_t validation = setup_.task.validation ? setup_.task.validation->batches() : 0;
  return {batches, closings * validation - validated, closings};
}

void TrainingRun::report_batch(const data::Batch& batch, double loss) {
  const auto before = static_cast<double>(epoch_.training_examples - batch.size());
  const double seconds = epoch_.training_seconds;
  const TimeLeft::Work all = work_left(0);
  const std::int64_t steps = setup_.plan.steps_per_epoch;
  reporter_.batch({.epoch = state_.epoch + 1,
                   .epochs = setup_.recipe.train.epochs,
                   .step = epoch_.batches,
                   .steps = steps,
                   .loss = loss,
                   .examples_per_second = seconds > 0 ? before / seconds : 0,
                   .tokens_per_example = tokens_of_example(setup_.recipe),
                   .flops_per_token = flops_per_token_,
                   .peak_flops = 1e12 * setup_.recipe.train.peak_tflops,
                   .learning_rate = updater_.learning_rate_at(place())},
                  {.training = std::min(steps - epoch_.batches, all.training)}, all);
}

void TrainingRun::report_validation(const Validator::Batch& batch, double seconds) {
  const std::int64_t batches = setup_.task.validation->batches();
  reporter_.validation_batch({.epoch = state_.epoch + 1,
                              .epochs = setup_.recipe.train.epochs,
                              .step = batch.done,
                              .steps = batches,
                              .loss = batch.scores.loss.mean(),
                              .examples_per_second = static_cast<double>(batch.examples) / seconds,
                              .tokens_per_example = tokens_of_example(setup_.recipe)},
                             {.validation = batches - batch.done}, work_left(batch.done));
}

TrainResult TrainingRun::result(Outcome outcome) const {
  TrainResult out;
  out.run_folder = folder_.path;
  out.finished = outcome == Outcome::Finished;
  if (out.finished) out.resume_flags = resume_flags_of(setup_.recipe, state_, early_stop_);
  out.epochs = state_.epoch;
  out.steps = state_.step;
  out.seconds = watch_.seconds();
  out.metric_name = setup_.task.metric_name;
  if (setup_.task.validation && state_.best_epoch >= 0) out.best_metric = state_.best_metric;
  out.best_epoch = state_.best_epoch + 1;
  out.step_seconds = timer_.batch_seconds();
  out.optimizer_seconds = timer_.optimizer_seconds();
  out.predicted_seconds = setup_.plan.predicted_seconds;
  out.predicted_optimizer_seconds = setup_.plan.predicted_optimizer_seconds;
  out.peaks = peaks_.devices();
  return out;
}

}  // namespace trestle::train
