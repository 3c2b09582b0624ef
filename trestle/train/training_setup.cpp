#include "trestle/train/training_setup.h"
#include "trestle/train/recipe_schedule.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/deepspeed/options.h"
#include "trestle/parallel/tensor_stages.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/train/chosen_schedule.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/mesh_options.h"
#include "trestle/train/message_times.h"
#include "trestle/train/rank_agreement.h"
#include "trestle/train/run_folder/run_paths.h"
#include "trestle/train/run_folder/saved_cut.h"
#include "trestle/train/schedule_search.h"
#include "trestle/train/slow_precision.h"
#include "trestle/train/validator.h"

namespace trestle::train {
namespace {

// No gradient depends on running statistics, but validation does.
void note_statistics_of_replicas(const TrainingSetup& setup) {
  if (setup.ranks.replicas() == 1) return;
  const auto buffers = setup.pipeline->named_buffers();
  const bool mine = std::any_of(buffers.begin(), buffers.end(), [](const auto& buffer) {
    return buffer.first.ends_with("running_mean");
  });
  if (!setup.ranks.any(mine)) return;
  setup.progress.note(
      "batch norm: each replica normalizes its own share of a batch, and the run keeps the running "
      "statistics of the first replica. Validation differs from that of one process.");
}

// The devices of one pipeline's ranks. One process has all of them.
std::vector<Device> one_of_each_pipeline_rank(const std::vector<Device>& all,
                                              const RunRanks& ranks) {
  if (ranks.alone()) return all;
  const auto count = static_cast<std::size_t>(ranks.pipeline_ranks());
  if (all.size() == 1) return std::vector<Device>(count, all[0]);
  std::vector<Device> own;
  for (std::size_t rank = 0; rank < count; ++rank) own.push_back(all.at(rank * all.size() / count));
  return own;
}

std::unique_ptr<Progress> silent_progress() {
  return make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
}

}  // namespace

TrainingSetup::TrainingSetup(const recipe::Recipe& given, const TrainHooks& hooks,
                             const RunFolder* resumed)
    : ranks(hooks.world),
      recipe(with_table(with_transformer_sizes(given))),
      deepspeed(deepspeed::deepspeed_config_of(given)),
      silent(hooks.progress ? nullptr : silent_progress()),
      progress(hooks.progress ? *hooks.progress : *silent),
      optimizer_factory(std::make_shared<RecipeOptimizers>(given)) {
  refuse_different_recipes(recipe, ranks);
  ranks.lay_out(recipe.mesh);
  if (!searches_schedule(recipe)) find_last_stage();
  check_training(recipe, hooks.user_parts);
  const bool begins = resumed == nullptr;  // otherwise its checkpoint has the weights
  if (begins) check_initial_weights(recipe);
  std::vector<Device> all_devices;
  ranks.in_turn([&] { all_devices = open_devices(recipe); });
  devices = devices_of_rank(all_devices, ranks);
  nn::Layers model = make_model(recipe, hooks.models, ranks.tensor());
  // Before the measurements of the balance and of the prediction, which compute in it.
  if (ranks.reports() && !devices[0].torch.is_cuda())
    report_slow_precision(recipe, model, hooks, progress);
  if (over_replicas())
    replicas = std::make_shared<parallel::StageReplicas>(ranks.replica_groups(), shard_options(),
                                                         stage_units_of(recipe.mesh));
  if (resumed != nullptr) take_saved_cut(*resumed);
  // With a given balance all mistakes in [pipeline] are found before any data is read or
  // synthesized.
  if (searches_schedule(recipe) && !recipe.pipeline.balance.empty())
    plan::check_cut({recipe.pipeline.balance.begin(), recipe.pipeline.balance.end()}, model.size());
  if ((!recipe.pipeline.balance.empty() && !searches_schedule(recipe)) || !saved_cut_.empty())
    pipeline = cut_pipeline(model, {});
  ranks.first_then_others([&] { open_data(hooks, resumed); });
  const bool cuts_for_search = searches_schedule(recipe) && recipe.pipeline.balance.empty();
  if (searches_schedule(recipe)) search_schedule(hooks, all_devices);
  task.loss = loss_of_split(recipe, hooks.user_parts, ranks.tensor());
  check_shares(recipe, task.training->examples());
  if (const auto part = ranks.reads()) first = task.training->read(0, 0, *part, ranks.share());
  data_mark = data_mark_of(first, task.training->examples(), ranks);
  if (ranks.is_first()) check_channels(recipe, first->inputs);
  make_pipeline_if_missing(model, first);
  if (begins) load_weights_over_ranks(recipe, *pipeline, ranks, progress);
  freeze_over_ranks(recipe, *pipeline, ranks);
  split_layers();
  optimizer_factory->set_parameters(pipeline->named_parameters());
  note_statistics_of_replicas(*this);
  if (recipe.train.predict) predict(first);  // before any parameter is sharded
  if (replicas) shard_parameters();
  optimizers = optimizer_factory->of(*pipeline);
  if (is_transformer(recipe)) sample.emplace(recipe, ranks);
  plan = make_plan(recipe, *pipeline, model, devices, task, prediction, hooks.user_parts);
  if (cuts_for_search) plan.balance_from = "measured";
  if (!saved_cut_.empty()) plan.balance_from = "resumed";
  add_ranks(all_devices, *pipeline, ranks, &plan);
}

void TrainingSetup::find_last_stage() {
  if (const int places = ranks.pipeline_ranks(); places > 1)
    ranks.set_rank_of_last_stage(
        ranks_of_stages(recipe, stage_count(recipe, static_cast<std::size_t>(places))).back());
}

void TrainingSetup::search_schedule(const TrainHooks& hooks,
                                    const std::vector<Device>& all_devices) {
  HostTimes times;
  if (ranks.pipeline_ranks() > 1) {
    constexpr Bytes message = Bytes{1} << 20;
    times.replicas = times.tensor = times.stages =
        time_messages(ranks.pipeline_group(), devices[0].torch, message);
  }
  std::string chosen;
  if (ranks.reports()) {
    const recipe::Recipe searched = recipe_to_search(recipe);
    const LayerCosts costs =
        measure_layers(searched, task, one_of_each_pipeline_rank(all_devices, ranks), hooks.models,
                       SplitBackwards::Measure);
    const ChosenSchedule found = choose_schedule(recipe, costs, times, hooks.user_parts);
    for (const std::string& line : found.reasons) progress.note(line);
    chosen = recipe::to_toml(found.recipe);
  }
  recipe.pipeline = recipe::parse_recipe(ranks.from_first(chosen), recipe.name).pipeline;
  find_last_stage();
}

void TrainingSetup::check_metric() {
  if (!task.validation) return;
  const auto one = [](const at::Tensor& rows) {
    return rows.defined() ? rows.narrow(0, 0, 1) : rows;
  };
  const data::Batch batch = first.value_or(data::Batch());
  const at::Tensor inputs = one(batch.inputs);
  const auto evaluate = [&] { return pipeline->evaluate(inputs); };
  const at::Tensor output =
      inputs.defined() ? with_inputs_named(recipe, inputs, evaluate) : evaluate();
  if (output.defined()) train::check_metric(task, output, one(batch.targets));
}

ShardOptions TrainingSetup::shard_options() const {
  ShardOptions options{.unused_parameters = UnusedParameters::Find};
  if (deepspeed) options = deepspeed::shard_options(*deepspeed);
  options.level = ranks.level();
  options.precision.parameters.reset();  // autocast computes in 16 bits
  set_sharding(recipe.mesh, &options);
  if (options.level == ShardLevel::None) options.shards_on_cpu = false;
  return options;
}

// Before the parameters are sharded, while they have their shapes.
void TrainingSetup::split_layers() {
  if (ranks.tensor().ranks.alone()) return;
  const auto sliced =
      parallel::agree_on_slices(*pipeline, ranks.pipeline_group(), ranks.tensor().ranks);
  if (replicas) replicas->set_sliced(sliced);
  slices = {.parameters = pipeline->parameter_slices(),
            .writes_whole_tensors = ranks.tensor().ranks.rank() == 0};
}

void TrainingSetup::shard_parameters() {
  Bytes trained = 0;
  for (const at::Tensor& parameter : pipeline->parameters())
    if (parameter.requires_grad()) trained += static_cast<Bytes>(parameter.nbytes());
  // A DeepSpeed configuration sets the buckets itself.
  if (!deepspeed || !recipe.mesh.bucket.empty())
    replicas->set_buckets(buckets_of(recipe.mesh, trained));
  replicas->take_parameters(*pipeline, ranks.mesh());
}

void TrainingSetup::predict(const std::optional<data::Batch>& first) {
  const data::Batch batch = first.value_or(data::Batch());
  const auto step = [&] { return predict_step(recipe, *pipeline, task, batch, ranks); };
  prediction = batch.inputs.defined() ? with_inputs_named(recipe, batch.inputs, step) : step();
}

std::unique_ptr<Pipeline> TrainingSetup::cut_pipeline(const nn::Layers& model,
                                                      const nn::Values& sample) const {
  return make_pipeline(
      recipe, model, devices,
      {.balance = saved_cut_,
       .sample = sample,
       .group = ranks.pipeline_group(),
       .replicas = {.group = replicas ? ranks.replica_groups().all : comm::Group(),
                    .hooks = replicas},
       .tensor = parallel::tensor_options(ranks.tensor().ranks),
       .tensor_ranks = ranks.tensor().ranks,
       .optimizer = [factory = optimizer_factory](int stage, const NamedTensors& parameters) {
         return factory->make(stage, parameters);
       }});
}

void TrainingSetup::take_saved_cut(const RunFolder& resumed) {
  if (!recipe.pipeline.balance.empty() || searches_schedule(recipe)) return;
  if (recipe.devices.use != recipe_of(resumed).devices.use) return;  // other budgets
  const std::vector<int> saved = saved_cut(checkpoint::read_train_state(resumed.last()).numbers);
  const auto places = static_cast<std::size_t>(ranks.pipeline_ranks());
  if (saved.size() == stage_count(recipe, places > 1 ? places : devices.size())) saved_cut_ = saved;
}

void TrainingSetup::make_pipeline_if_missing(const nn::Layers& model,
                                             const std::optional<data::Batch>& first) {
  if (pipeline) return;
  if (!ranks.is_first()) {  // the first rank has the inputs that the balance is measured with
    pipeline = cut_pipeline(model, {});
    return;
  }
  pipeline = with_inputs_named(recipe, first->inputs,
                               [&] { return cut_pipeline(model, {first->inputs}); });
}

// A resumed run uses the data that it began with, whatever the recipe would find now.
void TrainingSetup::open_data(const TrainHooks& hooks, const RunFolder* resumed) {
  if (resumed != nullptr) {
    recipe::Recipe with_data = seen_from_here(*resumed, recipe);
    with_data.data.synthesize = 0;
    const DataSet set = find_data_set(with_data.data.name, hooks.user_parts);
    if (set.check_weights) set.check_weights(with_data, resumed->last());
    task = make_task(with_data, progress, hooks.user_parts);
    return;
  }
  task = make_task(recipe, progress, hooks.user_parts, hooks.on_synthesized);
  const std::int64_t synthesize = recipe.data.synthesize;
  recipe.data = task.data;
  recipe.data.synthesize = synthesize;
}

}  // namespace trestle::train
