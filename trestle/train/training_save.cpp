#include <algorithm>
#include <cstdio>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/optim/state.h"
#include "trestle/train/training_run.h"
#include "trestle/view/chrome_trace.h"
#include "trestle/view/labels.h"
#include "trestle/view/svg.h"

namespace trestle::train {

namespace {

std::string rounded_value(double value) {
  char words[32];
  std::snprintf(words, sizeof words, "%.3f", value);
  return words;
}

std::string what_is_saved(const RunFolder& folder) {
  const std::string place = folder.path.string();
  if (std::filesystem::exists(folder.last()))
    return text("What was saved before is whole; once this is put right: trestle train --resume ",
                shell_word(place));
  if (std::filesystem::exists(folder.best()))
    return text(folder.best().string(),
                " is whole, but nothing that --resume could go on from was saved yet.");
  return text("Nothing was saved yet in ", place, ".");
}

// Adds to an error of saving what the person most wants to know: what is left.
template <class Action>
void saving(const RunFolder& folder, Action action) {
  try {
    action();
  } catch (FileError& error) {
    error.add_context(what_is_saved(folder));
    throw;
  }
}

}  // namespace

NamedTensors TrainingRun::weights() const {
  NamedTensors all = pipeline_->named_parameters();
  for (auto& buffer : pipeline_->named_buffers()) all.push_back(std::move(buffer));
  return all;
}

NamedTensors TrainingRun::gradients() const {
  NamedTensors all;
  for (const auto& [name, parameter] : pipeline_->named_parameters())
    if (parameter.grad().defined()) all.emplace_back(name, parameter.grad());
  return all;
}

// Weights, what the optimizers remember, and the gradients of a step in its middle.
void TrainingRun::put_in(const checkpoint::SavedTraining& saved) {
  const auto others = ranks_.alone() ? checkpoint::SurplusTensors::Refused : checkpoint::SurplusTensors::Ignored;
  if (replicas_) return replicas_->load(saved, optimizers_, others);
  saved.copy_weights(weights(), others);
  for (StageOptimizer& stage : optimizers_)
    optim::load_optimizer_state(*stage.optimizer, stage.names, saved.optimizer(stage.names));
  put_gradients_in(saved);
}

void TrainingRun::put_gradients_in(const checkpoint::SavedTraining& saved) {
  std::map<std::string, at::Tensor> parameters;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : pipeline_->named_parameters()) {
    parameters[name] = parameter;
    names.push_back(name);
  }
  for (const auto& [name, gradient] : saved.gradients(names)) {
    const at::Tensor& parameter = parameters.at(name);
    if (parameter.sizes() != gradient.sizes())
      throw FormatError(text("the gradient of '", name, "' is ", gradient.sizes(),
                             ", the parameter is ", parameter.sizes()),
                        {.file = folder_.last().string()});
    parameter.mutable_grad() =
        at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(gradient);
  }
}

void TrainingRun::save() {
  state_.numbers = {{"training_examples", static_cast<double>(task_.training->examples())},
                    {"data_mark", data_mark_},
                    {"loss_sum", loss_sum_},
                    {"loss_weight", loss_weight_},
                    {"group_loss", group_loss_},
                    {"last_learning_rate", learning_rate_},
                    {"epoch_seconds", batch_ == 0 ? 0 : seconds_of_epoch()}};
  rate_->save(state_.numbers);
  early_stop_.save(state_.numbers);
  bests_->save(state_.numbers);
  if (scaler_) state_.numbers.merge(scaler_->state());
  state_.samples = samples_done();
  state_.batches.reset();
  saving(folder_, [&] { write_checkpoint(); });
}

void TrainingRun::write_checkpoint() const {
  if (replicas_) {
    const auto groups = replicas_->groups_to_save(optimizers_, {.gradients = inside_step()});
    return checkpoint::write_training_checkpoint(folder_.last(), groups, state_, ranks_.saving());
  }
  checkpoint::TrainingCheckpoint resume{.weights = weights(), .state = state_};
  for (const StageOptimizer& stage : optimizers_)
    for (auto& entry : optim::optimizer_state(*stage.optimizer, stage.names))
      resume.optimizer.push_back(std::move(entry));
  if (inside_step()) resume.gradients = gradients();
  checkpoint::write_training_checkpoint(folder_.last(), resume, ranks_.saving());
}

void TrainingRun::save_best(const EpochReport& report) { write_weights(folder_.best(), report); }

void TrainingRun::keep_weights(const EpochReport& report) {
  bests_->add(report.epoch, report.metric.value_or(0),
              [&](const std::filesystem::path& file) { write_weights(file, report); });
}

void TrainingRun::write_weights(const std::filesystem::path& file, const EpochReport& report) {
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"model", recipe_.model.name},
                                                 {"epoch", text(report.epoch)},
                                                 {"step", text(report.step)}};
  if (report.metric) metadata[report.metric_name] = text(*report.metric);
  NamedTensors own = replicas_ && replicas_->divides() ? replicas_->state() : weights();
  if (ranks_.replica() > 0) own.clear();  // the others have the same
  saving(folder_,
         [&] { checkpoint::write_tensors_over_ranks(file, own, metadata, ranks_.saving()); });
}

void TrainingRun::save_views() {
  if (measured_.events.empty() || !ranks_.reports()) return;
  std::vector<schedule::Timeline> panels;
  if (prediction_) panels.push_back(prediction_->timeline);
  panels.push_back(measured_);
  saving(folder_, [&] {
    write_file(folder_.timeline(), view::to_chrome_trace(panels));
    if (view::cell_count(panels) <= view::most_cells)
      write_file(folder_.timeline_picture(), view::to_svg(panels, {.title = recipe_.name}));
    write_file(folder_.curve(), draw_curves(read_epochs(folder_.metrics()), recipe_.name));
  });
}

// The last rank has the output and draws; all know where.
void TrainingRun::draw_picture(EpochReport& report) {
  if (!task_.validation || !recipe_.train.pictures) return;
  const bool drawn = draw_shown(report);
  if (ranks_.any(drawn)) report.picture = folder_.picture(report.epoch);
}

bool TrainingRun::draw_shown(const EpochReport& report) {
  if (!shown_) return false;
  std::string title = text(recipe_.name, ", epoch ", report.epoch, " of ", report.epochs);
  if (report.synthetic_data) title += ", synthetic data";
  if (report.metric) title += text(", ", report.metric_name, " ", rounded_value(*report.metric));
  const std::optional<data::Image> picture =
      task_.picture(*shown_, shown_output_, {.title = title, .names = shown_->names});
  shown_.reset();
  if (!picture) return false;
  const std::filesystem::path file = folder_.picture(report.epoch);
  saving(folder_, [&] {
    std::filesystem::create_directories(file.parent_path());
    data::write_png(file, *picture);
  });
  return true;
}

void TrainingRun::reset_peaks() {
  for (const Device& device : devices_)
    if (!device.torch.is_cpu()) reset_peak_memory(device.torch);
}

void TrainingRun::keep_peaks() {
  for (int stage = 0; stage < pipeline_->stage_count(); ++stage) {
    if (!pipeline_->has_stage(stage)) continue;
    const Device& device = pipeline_->device(stage);
    if (device.torch.is_cpu()) continue;
    const std::string name = device_name(device.torch);
    auto found = std::find_if(peaks_.begin(), peaks_.end(),
                              [&](const DevicePeak& peak) { return peak.device == name; });
    if (found == peaks_.end()) {
      peaks_.push_back({name, 0, 0});
      found = std::prev(peaks_.end());
      for (const RunPlan::Stage& row : plan_.stages)
        if (row.device == name) found->predicted = row.predicted_peak;
    }
    found->measured = std::max(found->measured, memory_usage(device.torch).peak);
  }
  gather_peaks();
}

}  // namespace trestle::train
