#include "trestle/train/checkpointer.h"

#include <ATen/Functions.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/optim/state.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

std::string what_is_saved(const RunFolder& folder, const RunRanks& ranks) {
  const std::string place = folder.path.string();
  if (std::filesystem::exists(folder.last()))
    return text("The earlier checkpoint is intact. Once this is fixed: trestle train --resume ",
                shell_word(place));
  if (std::filesystem::exists(folder.best()))
    return text(folder.best().string(), " is intact, but there is no checkpoint to resume from.");
  // Another machine may not see yet what rank 0's machine has saved.
  if (!ranks.alone() && !ranks.world().is_on_this_machine(0))
    return text("If rank 0 has saved a checkpoint there: trestle train --resume ",
                shell_word(place));
  return text("Nothing was saved yet in ", place, ".");
}

}  // namespace

void with_saved_state_named(const RunFolder& folder, const RunRanks& ranks,
                            const std::function<void()>& write) {
  try {
    write();
  } catch (FileError& error) {
    error.add_context(what_is_saved(folder, ranks));
    throw;
  }
}

Checkpointer::Checkpointer(const RunRanks& ranks, Model model, RunFolder folder,
                           std::int64_t keep_best)
    : ranks_(ranks),
      model_(std::move(model)),
      folder_(std::move(folder)),
      bests_(folder_.bests(), keep_best) {}

void Checkpointer::load(const checkpoint::SavedTraining& saved) {
  const auto others =
      ranks_.alone() ? checkpoint::SurplusTensors::Refused : checkpoint::SurplusTensors::Ignored;
  bests_.load(saved.state().numbers);
  if (model_.replicas) return model_.replicas->load(saved, optimizers(), others);
  // All is read and checked before the first change.
  const auto weights = saved.stage_weights(weights_of(model_.pipeline), others);
  std::vector<NamedTensors> states;
  for (const StageOptimizer& stage : model_.optimizers)
    states.push_back(saved.optimizer(stage.names));
  const auto gradients = saved_gradients(saved);
  for (std::size_t i = 0; i < states.size(); ++i) {
    StageOptimizer& stage = model_.optimizers[i];
    optim::load_optimizer_state(*stage.optimizer, stage.names, states[i]);
  }
  weights.write();
  for (const auto& [parameter, gradient] : gradients)
    parameter.mutable_grad() =
        at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(gradient);
}

std::vector<std::pair<at::Tensor, at::Tensor>> Checkpointer::saved_gradients(
    const checkpoint::SavedTraining& saved) const {
  std::map<std::string, at::Tensor> parameters;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model_.pipeline.named_parameters()) {
    parameters[name] = parameter;
    names.push_back(name);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> all;
  for (const auto& [name, gradient] : saved.gradients(names)) {
    const at::Tensor& parameter = parameters.at(name);
    if (parameter.sizes() != gradient.sizes())
      throw FormatError(text("the gradient of '", name, "' is ", gradient.sizes(),
                             ", the parameter is ", parameter.sizes()),
                        {.file = folder_.last().string()});
    all.emplace_back(parameter, gradient);
  }
  return all;
}

void Checkpointer::save(checkpoint::TrainState& state, Gradients gradients) {
  bests_.save(state.numbers);
  with_saved_state_named(folder_, ranks_, [&] { write(state, gradients); });
}

void Checkpointer::write(const checkpoint::TrainState& state, Gradients gradients) const {
  const bool with_gradients = gradients == Gradients::Saved;
  if (model_.replicas) {
    const auto groups =
        model_.replicas->groups_to_save(optimizers(), {.gradients = with_gradients});
    return checkpoint::write_training_checkpoint(folder_.last(), groups, state, ranks_.saving(),
                                                 model_.padding, model_.slices);
  }
  checkpoint::TrainingCheckpoint resume{.weights = weights_of(model_.pipeline), .state = state};
  for (const StageOptimizer& stage : model_.optimizers)
    for (auto& entry : optim::optimizer_state(*stage.optimizer, stage.names))
      resume.optimizer.push_back(std::move(entry));
  if (with_gradients) resume.gradients = this->gradients();
  checkpoint::write_training_checkpoint(folder_.last(), resume, ranks_.saving(), model_.padding,
                                        model_.slices);
}

parallel::StageOptimizers Checkpointer::optimizers() const {
  parallel::StageOptimizers all;
  for (const StageOptimizer& stage : model_.optimizers) all.emplace(stage.stage, stage.optimizer);
  return all;
}

NamedTensors Checkpointer::gradients() const {
  NamedTensors all;
  for (const auto& [name, parameter] : model_.pipeline.named_parameters())
    if (parameter.grad().defined()) all.emplace_back(name, parameter.grad());
  return all;
}

void Checkpointer::save_best(const EpochReport& report) { write_weights(folder_.best(), report); }

void Checkpointer::keep_weights(const EpochReport& report) {
  bests_.add(report.epoch, report.metric.value_or(0),
             [&](const std::filesystem::path& file) { write_weights(file, report); });
}

void Checkpointer::write_weights(const std::filesystem::path& file, const EpochReport& report) {
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"model", model_.name},
                                                 {"epoch", text(report.epoch)},
                                                 {"step", text(report.step)}};
  if (report.metric) metadata[report.metric_name] = text(*report.metric);
  parallel::StageReplicas* const replicas = model_.replicas;
  NamedTensors own =
      replicas && replicas->is_sharded() ? replicas->state() : weights_of(model_.pipeline);
  if (ranks_.replica() > 0) own.clear();  // replica 0 writes them
  checkpoint::TensorGroups groups;
  for (auto& [name, tensor] : own) groups["weights"].push_back({.name = name, .tensor = tensor});
  groups = checkpoint::without_padding(checkpoint::in_whole_tensors(groups, model_.slices),
                                       model_.padding);
  with_saved_state_named(folder_, ranks_, [&] {
    checkpoint::write_boxes_over_ranks(file, groups["weights"], metadata, ranks_.saving());
  });
}

}  // namespace trestle::train
