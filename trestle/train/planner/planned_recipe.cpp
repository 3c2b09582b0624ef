#include "trestle/train/planner/planned_recipe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/plan/balance.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/train/language/model_flops.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/planner/sent_bytes.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/setup.h"
#include "trestle/train/task.h"

namespace trestle::train {

namespace {

using plan::BlockRecompute;
using plan::BrokenRule;
using plan::Precision;
using plan::Strategy;

// ZeRO's levels as words of 'shard_level' in [mesh].
constexpr const char* level_words[] = {"none", "optimizer_state", "gradients", "parameters"};

// The layers of a rank depend on these settings.
std::string key_of(const recipe::Recipe& recipe) {
  return text(recipe.mesh.tensor, recipe.mesh.sequence_parallel ? " sequence" : "", " ",
              join(recipe.pipeline.checkpoint, ","), " ", recipe.train.precision);
}

int stages_per_rank(const Strategy& strategy) {
  return strategy.pipeline > 1 ? schedule::stages_per_rank(strategy.schedule, 0) : 1;
}

bool has_batch_norm(const nn::Layers& model) {
  for (const auto& [name, buffer] : model.named_buffers())
    if (name.ends_with("running_mean")) return true;
  return false;
}

}  // namespace

struct PlannedRecipe::Cut {
  recipe::Recipe recipe;
  LayerCosts costs;
  std::vector<int> balance;
  StepOnPaper step;
  // Several searches of one model meet the same strategies.
  mutable std::vector<plan::Ledger> ledgers = {};
  mutable std::optional<plan::StrategyCosts> strategy_costs = {};
};

PlannedRecipe::PlannedRecipe(const recipe::Recipe& recipe, const TrainHooks& hooks,
                             PlannedDevices devices)
    : recipe_(recipe), hooks_(hooks), devices_(std::move(devices)) {
  recipe_.pipeline.balance.clear();
  recipe_.pipeline.split_size = 0;
  recipe_.pipeline.checkpoint_segments = 0;
  recipe_.pipeline.split_recomputed = false;
  const recipe::Recipe::Mesh given = recipe_.mesh;
  recipe_.mesh = {};
  recipe_.mesh.link = given.link;
  recipe_.mesh.ranks_per_host = given.ranks_per_host;
  recipe_.plan = {};
  if (plain().layers == nullptr) throw UsageError(plain().refusal);
  recipe_ = plain().layers->recipe();
}

PlannedRecipe::~PlannedRecipe() = default;

recipe::Recipe PlannedRecipe::with_strategy(const Strategy& strategy) const {
  recipe::Recipe recipe = recipe_;
  auto& mesh = recipe.mesh;
  const bool over_ranks = strategy.data > 1 || strategy.tensor > 1 || mesh.ranks_per_host > 0 ||
                          (devices_.always_ranks && strategy.devices() > 1);
  if (devices_.device.torch.is_privateuseone()) {
    const Bytes budget = devices_.device.budget;
    recipe.devices.use = text("virtual:", strategy.devices(),
                              budget > 0 ? text("x", budget >> 20, "MiB") : std::string());
  }
  mesh.pipeline = over_ranks ? strategy.pipeline : 0;
  mesh.shard = strategy.shards();
  mesh.replicate = strategy.data / strategy.shards();
  if (mesh.shard > 1) mesh.shard_level = level_words[strategy.level];
  mesh.offload = strategy.offload;
  if (strategy.precision != Precision::Own) recipe.train.precision = to_string(strategy.precision);
  mesh.tensor = strategy.tensor;
  mesh.sequence_parallel = strategy.sequence_parallel;
  auto& pipeline = recipe.pipeline;
  pipeline.micro_batches = plan::micro_batches_of(strategy, recipe.train.batch);
  pipeline.schedule = strategy.schedule;
  pipeline.stages_per_rank = 0;
  pipeline.checkpoint.clear();
  pipeline.recompute = {"never"};
  const bool partial = strategy.recompute_stages > 0;
  if (is_transformer(recipe) && !partial) {
    if (strategy.recompute == BlockRecompute::Selective) pipeline.checkpoint = {"attention"};
    if (strategy.recompute == BlockRecompute::All) pipeline.checkpoint = {"blocks"};
  } else if (strategy.recompute == BlockRecompute::All) {
    pipeline.recompute.assign(static_cast<std::size_t>(partial ? strategy.recompute_stages : 1),
                              "always");
    if (partial) pipeline.recompute.resize(static_cast<std::size_t>(strategy.pipeline), "never");
  }
  return recipe;
}

recipe::Recipe PlannedRecipe::recipe_of(const Strategy& strategy) const {
  const Cut& cut = cut_of(strategy);
  recipe::Recipe recipe = cut.recipe;
  if (strategy.pipeline > 1) recipe.pipeline.balance.assign(cut.balance.begin(), cut.balance.end());
  return recipe;
}

int PlannedRecipe::threads_of(const Strategy& strategy) const {
  if (recipe_.devices.threads > 0) return static_cast<int>(recipe_.devices.threads);
  if (devices_.cores == 0) return 1;
  // The stages of one process on plain CPUs take turns, each with all cores.
  const bool in_turn = devices_.device.torch.is_cpu() && strategy.data == 1 &&
                       strategy.tensor == 1 && recipe_.mesh.ranks_per_host == 0;
  const auto on_host = static_cast<int>(recipe_.mesh.ranks_per_host);
  const int sharing = on_host > 0 ? std::min(on_host, strategy.devices()) : strategy.devices();
  return std::max(1, in_turn ? devices_.cores : devices_.cores / sharing);
}

HostTimes PlannedRecipe::times_of(const Strategy& strategy) const {
  HostTimes times = devices_.times;
  times.cores = devices_.cores == 0
                    ? 0
                    : std::max(1.0, static_cast<double>(devices_.cores) / threads_of(strategy));
  return times;
}

const PlannedRecipe::Variant& PlannedRecipe::variant(const Strategy& strategy, int threads) const {
  recipe::Recipe recipe = with_strategy(strategy);
  // Which every loss allows: the layers are the same. I and W are measured if a search needs them.
  recipe.pipeline.schedule = devices_.count > 1 ? "auto" : "gpipe";
  recipe.pipeline.micro_batches = 1;
  // Strategies that differ in their data ranks share the layers.
  recipe.mesh.replicate = recipe.mesh.shard = 1;
  recipe.mesh.shard_level = recipe::Recipe::Mesh().shard_level;
  recipe.mesh.offload = false;
  const LayersOnPaper* like = nullptr;
  if (is_transformer(recipe) && !recipe.pipeline.checkpoint.empty() &&
      !hooks_.models.contains(recipe.model.name)) {
    Strategy plain = strategy;
    plain.recompute = BlockRecompute::None;
    plain.recompute_layers = plain.recompute_stages = 0;
    like = this->variant(plain, threads).layers.get();
    if (like == nullptr) return this->variant(plain, threads);
  }
  const auto [found, is_new] = variants_.try_emplace(text(key_of(recipe), " on ", threads));
  Variant& variant = found->second;
  if (!is_new) return variant;
  if (devices_.says)
    devices_.says(text("measures the layers of a rank · tensor ", strategy.tensor, " · recompute ",
                       to_string(strategy.recompute)));
  try {
    variant.layers = std::make_unique<LayersOnPaper>(
        recipe, hooks_, device_to_measure_on(recipe, {devices_.device}), nullptr, like,
        devices_.device.torch.is_cpu() ? threads : 1);
  } catch (const UsageError& error) {
    variant.refusal = error.what();
  }
  return variant;
}

const PlannedRecipe::Variant& PlannedRecipe::plain() const {
  const int threads = std::max(1, devices_.cores / devices_.count);
  return variant({},
                 recipe_.devices.threads > 0 ? static_cast<int>(recipe_.devices.threads) : threads);
}

const LayerCosts& PlannedRecipe::layer_costs_of(const Strategy& strategy) const {
  const recipe::Recipe recipe = with_strategy(strategy);
  const int threads = threads_of(strategy);
  const std::string key = text(key_of(recipe), " ", largest_micro_batch_of(recipe), " of ",
                               micro_batches_of(recipe), " on ", threads);
  const auto known = costs_.find(key);
  if (known != costs_.end()) return known->second;
  // The times of plain CPUs are measured on the CPU, and their bytes on a device with a meter. More
  // OpenMP threads than cores make each of them sleep at the end of each operator, so that device
  // has one.
  const bool times_on_cpu = devices_.device.torch.is_cpu() && threads > 1;
  const DeviceThreads scope(device_to_measure_on(recipe, {devices_.device}),
                            times_on_cpu ? 1 : threads);
  const Variant& found = variant(strategy, threads);
  if (found.layers == nullptr) throw UsageError(found.refusal);
  return costs_.emplace(key, found.layers->costs(recipe, {devices_.device})).first->second;
}

const PlannedRecipe::Cut& PlannedRecipe::cut_of(const Strategy& strategy) const {
  const std::string key = to_string(strategy);
  if (const auto known = cuts_.find(key); known != cuts_.end()) return known->second;
  Cut cut;
  cut.recipe = with_strategy(strategy);
  cut.costs = layer_costs_of(strategy);
  // Each rank has a device of its own.
  cut.costs.devices.clear();
  for (const int rank :
       schedule::ranks_of_stages(strategy.schedule, strategy.pipeline * stages_per_rank(strategy),
                                 stages_per_rank(strategy)))
    cut.costs.devices.push_back(text(device_name(devices_.device.torch), " ", rank));
  cut.costs.budgets.assign(cut.costs.devices.size(), devices_.device.budget);
  cut.costs.sizes.recompute = schedule::parse_recompute(cut.recipe.pipeline.recompute.at(0));
  try {
    cut.balance = plan::balance_within(cut.costs.profile, cut.costs.budgets, cut.costs.sizes,
                                       device_numbers(cut.costs));
  } catch (const UsageError&) {  // nothing fits: then what comes nearest
    cut.balance = plan::balance_by_size(
        cut.costs.profile, static_cast<int>(cut.costs.budgets.size()), cut.costs.sizes);
  }
  cut.step =
      step_on_paper(cut.recipe, cut.costs, cut.balance, hooks_.user_parts, times_of(strategy));
  return cuts_.emplace(key, std::move(cut)).first->second;
}

std::string PlannedRecipe::name() const { return recipe_.model.name; }

std::int64_t PlannedRecipe::layers() const {
  return static_cast<std::int64_t>(plain().layers->model().size());
}

std::int64_t PlannedRecipe::tokens() const {
  return std::max<std::int64_t>(tokens_of_example(recipe_), 1);
}

double PlannedRecipe::flops(std::int64_t batch) const {
  return flops_per_token(recipe_) * static_cast<double>(batch * tokens_of_example(recipe_));
}

std::string PlannedRecipe::flops_formula() const {
  return "6 N + 12 L H Q T for each token (Chowdhery et al. 2022)";
}

std::vector<std::string> PlannedRecipe::schedules() const {
  if (loss_of(recipe_, hooks_.user_parts).kind == nn::Loss::Kind::WholeBatch) return {"gpipe"};
  return {"1f1b", "gpipe", "zb_h1", "interleaved_1f1b", "zbv"};
}

std::vector<BlockRecompute> PlannedRecipe::recomputations() const {
  if (!is_transformer(recipe_)) return {BlockRecompute::None, BlockRecompute::All};
  return {BlockRecompute::None, BlockRecompute::Selective, BlockRecompute::All};
}

// 'checkpoint' recomputes a transformer's blocks in every stage. The first stages alone are
// recomputed whole, as those of other models.
std::vector<int> PlannedRecipe::recompute_stages(const Strategy& strategy) const {
  if (strategy.pipeline == 1 || strategy.recompute == BlockRecompute::Selective ||
      stages_per_rank(strategy) > 1)
    return {};
  std::vector<int> stages = {1};
  for (const int more : {strategy.pipeline / 2, strategy.pipeline - 1})
    if (more > stages.back()) stages.push_back(more);
  return stages;
}

std::vector<Precision> PlannedRecipe::precisions() const {
  std::vector<Precision> all = {plan::parse_precision(recipe_.train.precision)};
  for (const Precision other : {Precision::Fp32, Precision::Bf16, Precision::Fp16})
    if (other != all.front()) all.push_back(other);
  return all;
}

// Their layers would be measured once more for each number of ranks.
bool PlannedRecipe::splits_tokens() const { return false; }

std::string PlannedRecipe::sources(const plan::Machine& machine) const {
  const std::string cores = devices_.cores == 0 ? "on one core for each device"
                                                : text("and the devices share ",
                                                       counted(devices_.cores, "core"), " of it");
  return text(
      "Steps are simulated from layers that were measured on this machine alone, ", cores,
      ", and extrapolated; so are the bytes. ",
      devices_.source_of_times.empty()
          ? text("Messages are those of ", counted(devices_.count, "rank"),
                 devices_.count == 1 ? " that is a thread here." : " that are threads here.")
          : devices_.source_of_times,
      " The range is ", to_string(machine.transformer.spread.origin), ": ",
      machine.transformer.spread.from, ".",
      recipe_.train.accumulate > 1
          ? text(" A step is one batch with a whole update; ", recipe_.train.accumulate,
                 " batches share an update ('accumulate' in [train]).")
          : std::string(),
      has_batch_norm(plain().layers->model())
          ? " Batch norms take their statistics from each micro-batch, so that losses "
            "change with its size."
          : "");
}

std::vector<BrokenRule> PlannedRecipe::broken_rules(const Strategy& strategy) const {
  if (strategy.chunks > 1)
    return {{"interleaved", "a recipe names its schedule: keep schedule=interleaved_1f1b"}};
  if (strategy.pipeline == 1 && !plan::has_plain_schedule(strategy))
    return {{"schedule", text(strategy.schedule, " needs a pipeline of 2 ranks or more")}};
  if (strategy.recompute_stages > 0 && stages_per_rank(strategy) > 1)
    return {{"recompute", text("the first stages of ", strategy.schedule, " are on all ranks")}};
  if (const int stages = strategy.pipeline * stages_per_rank(strategy); stages > layers())
    return {{"layers", text(stages, " stages are more than ", layers(), " layers")}};
  if (strategy.recompute_layers > 0)
    return {{"recompute", "a recipe recomputes whole stages: give recompute_stages"}};
  if (strategy.recompute == BlockRecompute::Selective && !is_transformer(recipe_))
    return {{"recompute", "only a transformer has attentions to recompute"}};
  if (strategy.recompute_stages > 0 && strategy.recompute == BlockRecompute::Selective)
    return {{"recompute", "a recipe recomputes attentions in every stage"}};
  if (strategy.offload && devices_.device.torch.is_cpu())
    return {{"offload", "the memory of the recipe's devices is the host's"}};
  recipe::Recipe recipe = with_strategy(strategy);
  // The degrees alone are asked with a schedule that a loss over the whole batch refuses.
  const bool is_plain = plan::has_plain_schedule(strategy);
  if (is_plain) recipe.pipeline.schedule = schedules().front();
  try {
    check_training(recipe, hooks_.user_parts);
    if (!is_plain)  // refuses a number of micro-batches that it does not take
      (void)compute_actions(recipe, strategy.pipeline * stages_per_rank(strategy),
                            micro_batches_of(recipe));
    check_shares(recipe, plain().layers->data().training);
  } catch (const UsageError& error) {
    return {{"recipe", error.what()}};
  }
  const Variant& found = variant(strategy, threads_of(strategy));
  if (found.layers == nullptr)
    return {{strategy.precision == Precision::Own ? "tensor" : "precision", found.refusal}};
  return {};
}

// A batch norm needs more than one value of each channel.
std::vector<BrokenRule> PlannedRecipe::rules_of_micro_batch(const Strategy& strategy) const {
  if (strategy.micro_batch > 1) return {};
  const recipe::Recipe recipe = with_strategy({.tensor = strategy.tensor});
  const int threads = threads_of(strategy);
  const auto [found, is_new] = refused_examples_.try_emplace(text(key_of(recipe), " ", threads));
  if (is_new) {
    const DeviceThreads scope(device_to_measure_on(recipe, {devices_.device}), threads);
    try {
      variant(strategy, threads).layers->costs(recipe, {devices_.device});
    } catch (const UsageError& error) {
      found->second = error.what();
    }
  }
  if (found->second.empty()) return {};
  return {{"micro_batch", found->second}};
}

std::vector<plan::Ledger> PlannedRecipe::ledgers(const Strategy& strategy, std::int64_t) const {
  const Cut& cut = cut_of(strategy);
  if (!cut.ledgers.empty()) return cut.ledgers;
  const CutPrediction predicted =
      predict_step_on_paper(cut.recipe, cut.costs, cut.balance, cut.step);
  std::vector<plan::Ledger> ledgers(static_cast<std::size_t>(strategy.pipeline));
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < cut.balance.size(); ++stage) {
    const std::size_t last = first + static_cast<std::size_t>(cut.balance[stage]);
    const simulate::StageCost& cost = cut.step.costs.stages[stage];
    Bytes parameters = 0, trained = 0;
    for (; first < last; ++first) {
      parameters += cut.costs.profile.layers[first].parameters;
      trained += cut.costs.profile.layers[first].trained();
    }
    const Bytes buckets = kept_buckets(cut.recipe, trained);
    if (strategy.level == 3) parameters /= strategy.shards();
    const int offloaded = cut.costs.sizes.optimizer_states + (strategy.level == 3 ? 2 : 0);
    const Bytes share = strategy.level == 3 ? parameters : parameters / strategy.shards();
    if (strategy.offload && strategy.level == 3) parameters = 0;
    const Bytes states = std::max<Bytes>(cost.persistent - parameters - buckets, 0);
    const int rank = cut.step.costs.device_of_stage.at(stage);
    plan::Ledger& ledger = ledgers.at(static_cast<std::size_t>(rank));
    ledger.stage = rank;
    ledger.parameters += static_cast<double>(parameters);
    ledger.optimizer += static_cast<double>(states);
    ledger.gradients += static_cast<double>(cost.gradients + buckets);
    if (strategy.offload) ledger.host += static_cast<double>(offloaded * share);
  }
  for (plan::Ledger& ledger : ledgers) {
    const auto peak = static_cast<double>(
        predicted.timeline.device_peak_bytes.at(static_cast<std::size_t>(ledger.stage)));
    ledger.activations =
        std::max(0.0, peak - ledger.parameters - ledger.optimizer - ledger.gradients);
  }
  cut.ledgers = ledgers;
  return ledgers;
}

plan::StrategyCosts PlannedRecipe::costs(const Strategy& strategy, std::int64_t) const {
  const Cut& cut = cut_of(strategy);
  if (cut.strategy_costs) return *cut.strategy_costs;
  HostTimes silent;
  silent.optimizer_seconds_per_byte = devices_.times.optimizer_seconds_per_byte;
  const StepOnPaper without =
      step_on_paper(cut.recipe, cut.costs, cut.balance, hooks_.user_parts, silent);
  plan::StrategyCosts costs{.costs = cut.step.costs};
  costs.table = schedule::add_optimizer_steps(cut.step.table);
  const auto run = [&](const simulate::StageCost& cost) {
    return static_cast<double>(cut.costs.sizes.micro_batches) * (cost.forward + cost.backward) +
           cost.unshard + cost.reduce;
  };
  // Messages of ranks that share cores, as long as while all of them run.
  const auto& shared = costs.costs.shared_cores;
  const double longer = shared ? std::max(1.0, strategy.devices() / shared->cores) : 1;
  for (std::size_t stage = 0; stage < cut.balance.size(); ++stage) {
    const double waits = run(costs.costs.stages[stage]) - run(without.costs.stages[stage]);
    double tensor = 0;
    if (!costs.costs.messages.empty())
      for (const auto* list :
           {&costs.costs.messages[stage].forward, &costs.costs.messages[stage].backward})
        for (const LayerMessage& message : *list)
          tensor += static_cast<double>(cut.costs.sizes.micro_batches) * message.exposed();
    costs.tensor_messages.push_back(longer * tensor);
    costs.data_messages.push_back(longer * std::max(0.0, waits - tensor));
  }
  cut.strategy_costs = costs;
  return costs;
}

std::vector<plan::LinkBytes> PlannedRecipe::sent(const Strategy& strategy, std::int64_t) const {
  const Cut& cut = cut_of(strategy);
  return bytes_sent_by_stages(cut.recipe, cut.costs, cut.balance, cut.step);
}

}  // namespace trestle::train
