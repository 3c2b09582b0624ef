#include "trestle/train/predict/evaluator.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/nonfinite_data.h"
#include "trestle/train/predict/run_weights.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_folder/json_number.h"
#include "trestle/train/run_folder/run_paths.h"
#include "trestle/train/setup.h"
#include "trestle/train/task.h"
#include "trestle/train/validator.h"

namespace trestle::train {

namespace {

// A key that the data set does not read would have no effect, and no message would say so.
void refuse_without_effect(const DataSet& set, const std::string& name) {
  constexpr std::string_view section = "data.";
  if (!name.starts_with(section)) return;
  const std::string key = name.substr(section.size());
  if (key == "workers" || set.reads(key)) return;
  throw UsageError(text("'", key, "' in [data] has no effect for '", set.name, "'"),
                   {.hint = "Leave it out."});
}

// The run's task on the requested data.
Task open_evaluated_task(const recipe::Recipe& recipe, bool others, const UserParts& own) {
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  try {
    return make_judging_task(recipe, *silent, own,
                             others ? Judged::Everything : Judged::Validation);
  } catch (UsageError& error) {
    const DataSet set = find_data_set(recipe.data.name, own);
    if (!others && data_are_missing(set, recipe))
      error.add_context("The run was trained on these data. Choose other data with --" +
                        join(set.paths, ", --") + ".");
    throw;
  }
}

EvaluateResult evaluate(RunWeights& weights, const EvaluateOptions& options) {
  const Stopwatch watch;
  recipe::Recipe& recipe = weights.recipe;
  recipe.data.synthesize = 0;
  const DataSet set = find_data_set(recipe.data.name, options.user_parts);
  const recipe::Recipe own = recipe;
  bool cut_is_asked_for = false;
  for (const auto& [name, value] : options.changes) {
    recipe::set_field(recipe, name, value);  // refuses what is no field
    const std::string field = recipe::find_field(name)->name();
    refuse_without_effect(set, field);
    cut_is_asked_for |= field == "pipeline.balance";
  }
  EvaluateResult result{.weights = weights.file};
  result.others = !same_places(recipe, own);
  // The run's own data may have been written again.
  if (set.check_weights) set.check_weights(recipe, weights.file);
  const std::vector<Device> devices = open_devices(recipe);
  if (cut_is_asked_for) check_balance(recipe, devices.size());
  const nn::Layers model = make_model(recipe, options.models);
  const Task task = open_evaluated_task(recipe, result.others, options.user_parts);
  for (const auto& path : data_paths(set, recipe)) result.data.push_back(path.string());
  result.synthetic_data = !task.synthetic.empty();
  result.examples = task.validation->examples();
  result.metric_name = task.metric_name;

  std::unique_ptr<Pipeline> pipeline;
  Scores judged;
  TrainedFor trained_for;
  data::Epoch batches = task.validation->epoch(0);
  for (const data::Batch& batch : batches) {
    if (!pipeline) {
      check_channels(recipe, batch.inputs);
      pipeline = make_trained_pipeline(weights, model, devices, batch.inputs, &trained_for);
    }
    with_inputs_named(recipe, batch.inputs, [&] { judged.add(*pipeline, task, batch); });
    refuse_nonfinite_validation(judged.loss.sum, batch, RunRanks(), *pipeline, nullptr);
    if (options.progress) options.progress(batch.index + 1, task.validation->batches());
  }
  result.epoch = trained_for.epochs;
  result.step = trained_for.steps;
  result.validation_loss = judged.loss.mean();
  result.metric = judged.metric.mean();
  result.seconds = watch.seconds();
  return result;
}

}  // namespace

EvaluateResult evaluate(const EvaluateOptions& options) {
  RunWeights weights = find_run_weights(options.run, options.checkpoint);
  return with_sizes_named(weights.recipe, [&] { return evaluate(weights, options); });
}

std::string to_json(const EvaluateResult& result) {
  using nlohmann::ordered_json;
  ordered_json out = {{"weights", result.weights.string()}};
  if (result.epoch > 0) out["epoch"] = result.epoch;
  if (result.step > 0) out["step"] = result.step;
  out["data"] = result.data;
  out["examples"] = result.examples;
  out["validation_loss"] = json_number(result.validation_loss);
  out[result.metric_name] = json_number(result.metric);
  out["seconds"] = result.seconds;
  if (result.synthetic_data) out["synthetic_data"] = true;
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace trestle::train
