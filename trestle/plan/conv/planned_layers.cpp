#include "trestle/plan/conv/planned_layers.h"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <sstream>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/balance.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/optimizer_steps.h"

namespace trestle::plan {
namespace {

schedule::Recompute recompute_of(const Strategy& strategy) {
  return strategy.recompute == BlockRecompute::All ? schedule::Recompute::ExceptLast
                                                   : schedule::Recompute::Never;
}

// Those that a stage holds at its peak.
int micro_batches_in_flight(const Strategy& strategy, std::int64_t micro_batches, int stage) {
  const auto all = static_cast<int>(micro_batches);
  return strategy.schedule == "gpipe" ? all : std::min(all, strategy.pipeline - stage);
}

std::string key_of(const Strategy& strategy, std::int64_t micro_batches) {
  return text(strategy.pipeline, " ", strategy.micro_batch, " ", micro_batches, " ",
              strategy.schedule, " ", to_string(strategy.recompute));
}

// Stages of a replica are next to each other: rank = replica x stages + stage.
GroupPlace place_of_replicas(const Strategy& strategy, const Machine& machine) {
  const int per_node = std::clamp(machine.devices_per_node / strategy.pipeline, 1, strategy.data);
  return {.ranks = strategy.data,
          .per_node = per_node,
          .sharing = std::max(machine.devices_per_node / per_node, 1)};
}

double parameters_of_layers(const LayerProfile& profile, int first, int last) {
  double bytes = 0;
  for (int i = first; i < last; ++i)
    bytes += static_cast<double>(profile.layers[static_cast<std::size_t>(i)].parameters);
  return bytes;
}

}  // namespace

PlannedLayers::PlannedLayers(LayerList list, const Machine& machine, Options options)
    : list_(std::move(list)), machine_(machine), options_(std::move(options)) {}

std::string PlannedLayers::name() const {
  std::ostringstream millions;
  millions << std::fixed << std::setprecision(1) << parameters_of(list_) / 1e6;
  return text(list_.name, " of ", millions.str(), " million parameters: ", list_.layers.size(),
              " layers");
}

std::int64_t PlannedLayers::layers() const {
  return static_cast<std::int64_t>(list_.layers.size());
}

double PlannedLayers::flops(std::int64_t batch) const {
  return model_flops(list_, static_cast<double>(batch));
}

std::string PlannedLayers::sources(const Machine& machine) const {
  return text(
      "Times are simulated from FLOPs and bytes of the layers, in fp32, and assumed for "
      "this machine: products ",
      machine.transformer.matrix_efficiency.from, "; between nodes ",
      format_bandwidth(machine.between.bandwidth.value), ", ",
      to_string(machine.between.bandwidth.origin), ". The range: ", machine.transformer.spread.from,
      ". MFU is ", flops_formula(), " over step x devices x peak.");
}

std::vector<BrokenRule> PlannedLayers::broken_rules(const Strategy& strategy) const {
  std::vector<BrokenRule> broken;
  if (strategy.tensor > 1)
    broken.push_back({"tensor", text("layers by formulas are not split over ", strategy.tensor,
                                     " tensor ranks")});
  if (strategy.level > 0)
    broken.push_back({"level", text("layers by formulas have no ZeRO-", strategy.level)});
  return broken;
}

const LayerProfile& PlannedLayers::profile_for(int micro_batch) const {
  const auto found = profiles_.find(micro_batch);
  if (found != profiles_.end()) return found->second;
  return profiles_.emplace(micro_batch, profile_of(list_, micro_batch, machine_)).first->second;
}

std::vector<int> PlannedLayers::cut_of(const Strategy& strategy, std::int64_t micro_batches) const {
  if (static_cast<int>(options_.balance.size()) == strategy.pipeline) return options_.balance;
  // The fastest cut is the same for all micro-batches, because times are proportional to them.
  std::vector<int>& fastest = fastest_[strategy.pipeline];
  if (fastest.empty()) fastest = balance_by_time(profile_for(1), strategy.pipeline);
  const auto [found, is_new] = cuts_.try_emplace(key_of(strategy, micro_batches), fastest);
  if (!is_new) return found->second;
  const LayerProfile& profile = profile_for(strategy.micro_batch);
  SizeOptions sizes{.optimizer_states = options_.optimizer_states,
                    .recompute = recompute_of(strategy)};
  const auto budget =
      static_cast<Bytes>(std::max(machine_.memory.value - machine_.reserved.value, 1.0));
  bool fits = true;
  for (int stage = 0, first = 0; stage < strategy.pipeline; ++stage) {
    sizes.micro_batches = micro_batches_in_flight(strategy, micro_batches, stage);
    const int last = first + fastest[static_cast<std::size_t>(stage)];
    fits = fits && stage_bytes(profile, first, last, sizes) <= budget;
    first = last;
  }
  if (fits) return found->second;
  sizes.micro_batches = micro_batches_in_flight(strategy, micro_batches, 0);
  try {
    found->second = balance_within(
        profile, std::vector<Bytes>(static_cast<std::size_t>(strategy.pipeline), budget), sizes);
  } catch (const UsageError&) {  // no cut fits: the fastest one, whose ledger shows the overshoot
  }
  return found->second;
}

std::vector<Ledger> PlannedLayers::ledgers(const Strategy& strategy,
                                           std::int64_t micro_batches) const {
  const LayerProfile& profile = profile_for(strategy.micro_batch);
  std::vector<Ledger> ledgers;
  int first = 0;
  for (const int count : cut_of(strategy, micro_batches)) {
    const int stage = static_cast<int>(ledgers.size());
    const double parameters = parameters_of_layers(profile, first, first + count);
    Ledger ledger{.stage = stage,
                  .parameters = parameters,
                  .gradients = parameters,
                  .optimizer = options_.optimizer_states * parameters};
    const Bytes whole =
        stage_bytes(profile, first, first + count,
                    {.optimizer_states = options_.optimizer_states,
                     .micro_batches = micro_batches_in_flight(strategy, micro_batches, stage),
                     .recompute = recompute_of(strategy)});
    ledger.activations = static_cast<double>(whole) - ledger.total();
    ledger.reserved = machine_.reserved.value;
    ledgers.push_back(ledger);
    first += count;
  }
  return ledgers;
}

StrategyCosts PlannedLayers::costs(const Strategy& strategy, std::int64_t micro_batches) const {
  const LayerProfile& profile = profile_for(strategy.micro_batch);
  const std::vector<int> balance = cut_of(strategy, micro_batches);
  CutCosts cut = costs_of_cut(profile, balance, {.optimizer_states = options_.optimizer_states});
  const GroupPlace place = place_of_replicas(strategy, machine_);
  // All pairs of stages are taken to be in one node if each replica is.
  const bool whole = strategy.pipeline <= machine_.devices_per_node &&
                     (strategy.data == 1 || machine_.devices_per_node % strategy.pipeline == 0);
  const Reach reach = whole ? Reach::Inside : Reach::Between;
  StrategyCosts costs{.costs = std::move(cut.costs)};
  int first = 0;
  for (std::size_t s = 0; s < balance.size(); ++s) {
    const double parameters = parameters_of_layers(profile, first, first + balance[s]);
    first += balance[s];
    simulate::StageCost& stage = costs.costs.stages[s];
    stage.norm = machine_.transformer.step_seconds.value;
    // Weights, gradients and states are read, weights and states written.
    stage.step = (3 + 2 * options_.optimizer_states) * parameters / machine_.memory_bandwidth.value;
    stage.reduce = strategy.data > 1 ? all_reduce_seconds(machine_, parameters, place) : 0;
    costs.tensor_messages.push_back(0);
    costs.data_messages.push_back(stage.reduce);
    costs.update_messages.push_back(0);
  }
  for (simulate::RouteCost& route : costs.costs.routes)
    route.seconds = message_seconds(machine_, static_cast<double>(route.bytes),
                                    {reach, machine_.devices_per_node});
  auto& table = tables_[key_of(strategy, micro_batches)];
  if (table.stages == 0) {
    const auto compute = schedule::generate(
        strategy.schedule,
        {.stages = strategy.pipeline, .micro_batches = static_cast<int>(micro_batches)});
    table = schedule::add_optimizer_steps(schedule::add_reductions(schedule::lower(
        compute,
        {.routes = cut.routes,
         .recompute = std::vector<schedule::Recompute>(balance.size(), recompute_of(strategy))})));
  }
  costs.table = table;
  return costs;
}

}  // namespace trestle::plan
