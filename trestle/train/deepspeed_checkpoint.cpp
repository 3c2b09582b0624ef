#include "trestle/train/deepspeed_checkpoint.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/folder.h"

namespace trestle::train {
namespace {

// The parameters of all stages in the model's order, each once.
std::vector<checkpoint::DeepspeedParameter> parameters_of(const TrainingSetup& setup) {
  std::vector<std::string> own;
  std::vector<checkpoint::DeepspeedParameter> all;
  for (const auto& [name, parameter] : setup.pipeline->named_parameters()) own.push_back(name);
  std::set<std::string> seen;
  for (const std::string& name : setup.ranks.gather_lines(own))
    if (seen.insert(name).second) all.push_back({.name = name});
  return all;
}

std::int64_t count_of(const checkpoint::TrainState& state, const char* name) {
  const auto found = state.numbers.find(name);
  return found == state.numbers.end() ? 0 : static_cast<std::int64_t>(found->second);
}

}  // namespace

void check_deepspeed_checkpoints(const recipe::Recipe& recipe) {
  if (!recipe.train.deepspeed_checkpoints) return;
  const auto refuse = [](const std::string& why) {
    throw UsageError(text("'deepspeed_checkpoints' in [train] ", why),
                     {.hint = "Leave it out: the run's own checkpoint, last/, holds everything."});
  };
  if (recipe.train.precision == "fp16")
    refuse("does not work with fp16, whose scaler DeepSpeed's folder would have to hold");
  if (recipe.mesh.shard > 1 && recipe.mesh.replicate > 1)
    refuse("does not work with both replicate and shard in [mesh]");
  if (recipe.transformer.vocabulary_multiple > 1)
    refuse("does not work with vocabulary_multiple, whose padded rows are not in the checkpoint");
  const auto& optimizer = recipe.optimizer;
  if (!optimizer.frozen.empty()) refuse("does not work with frozen parameters");
  if (!optimizer.no_weight_decay.empty() || !optimizer.rate_factors.empty())
    refuse("does not work with no_weight_decay and rate_factors");
}

void write_deepspeed_checkpoint(const TrainingSetup& setup, const RunFolder& folder,
                                const checkpoint::TrainState& state, double next_rate) {
  const recipe::Recipe& recipe = setup.recipe;
  const int level = static_cast<int>(setup.ranks.level());
  const int stage = setup.deepspeed ? static_cast<int>(setup.deepspeed->stage) : level;
  const std::int64_t skipped = count_of(state, "steps_left_out");
  checkpoint::DeepspeedPickle about{
      .stage = stage,
      .ranks = setup.ranks.replicas(),
      .parameters = parameters_of(setup),
      .bf16 = recipe.train.precision == "bf16",
      .clip_grad_norm = recipe.optimizer.clip_grad_norm,
      .train_batch = recipe.train.batch * recipe.train.accumulate,
      .groups = {{.values = deepspeed::optimizer_values(*setup.optimizers.at(0).optimizer).at(0)}},
      .progress = {.steps = state.step,
                   .skipped_steps = skipped,
                   .samples = state.step * recipe.train.batch * recipe.train.accumulate,
                   .client_state = {{"epoch", static_cast<double>(state.epoch)}}}};
  about.groups[0].values["lr"] = next_rate;
  if (setup.deepspeed) about.sub_group = setup.deepspeed->sub_group;
  if (setup.deepspeed && setup.deepspeed->schedule)
    about.progress.scheduler_iteration = state.step - skipped - 1;
  deepspeed::convert_to_folder(folder.last(), folder.deepspeed(), text("global_step", state.step),
                               about, setup.ranks.saving());
}

}  // namespace trestle::train
