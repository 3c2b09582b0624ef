#include "trestle/plan/conv/planned_layers.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iomanip>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

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

// The bytes of each run of layers, for one size of micro-batches: those of one device that has
// them, by the micro-batches that it holds. stage_bytes() (balance.h) is linear in these, and a
// search needs a run many times.
class RunBytes {
 public:
  RunBytes(const LayerProfile& profile, int optimizer_states)
      : profile_(profile),
        optimizer_states_(optimizer_states),
        runs_((profile.layers.size() + 1) * (profile.layers.size() + 1)) {}

  double of(int first, int last, int held, schedule::Recompute recompute) {
    const Run& run = run_of(first, last);
    if (recompute == schedule::Recompute::Never) return run.once + held * run.kept;
    return run.once + (held - 1) * run.inputs + run.kept;  // except_last
  }

 private:
  struct Run {
    double once = -1;   // whatever the micro-batches are; below 0 = not known yet
    double kept = 0;    // by the graph of a micro-batch
    double inputs = 0;  // a micro-batch brings
  };

  const Run& run_of(int first, int last) {
    Run& run = runs_[static_cast<std::size_t>(first) * (profile_.layers.size() + 1) +
                     static_cast<std::size_t>(last)];
    if (run.once >= 0) return run;
    const auto bytes = [&](int held, schedule::Recompute recompute) {
      return static_cast<double>(stage_bytes(
          profile_, first, last,
          {.optimizer_states = optimizer_states_, .micro_batches = held, .recompute = recompute}));
    };
    const double one = bytes(1, schedule::Recompute::Never);
    run.kept = bytes(2, schedule::Recompute::Never) - one;
    run.inputs = bytes(1, schedule::Recompute::Always) - one;
    run.once = one - run.kept;
    return run;
  }

  const LayerProfile& profile_;
  int optimizer_states_;
  std::vector<Run> runs_;
};

std::vector<double> seconds_before_layers(const LayerProfile& profile) {
  std::vector<double> before = {0};
  for (const LayerCost& layer : profile.layers)
    before.push_back(before.back() + layer.forward + layer.backward);
  return before;
}

// The cut whose slowest stage is fastest, of those whose stages all fit. before[i]: the seconds of
// the first i layers. A run that does not fit does not fit with more layers behind it either.
std::optional<std::vector<int>> fastest_cut_that_fits(
    const std::vector<double>& before, int stages,
    const std::function<bool(int stage, int first, int last)>& fits) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const int layers = static_cast<int>(before.size()) - 1;
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  // behind[i]: the slowest of the stages after this one, if they have the layers from i on.
  std::vector<double> behind(before.size(), never);
  behind.back() = 0;
  std::vector<std::vector<int>> ends;  // [stage, the last one first][its first layer]
  for (int stage = stages - 1; stage >= 0; --stage) {
    std::vector<double> best(before.size(), never);
    std::vector<int>& end_of = ends.emplace_back(before.size(), 0);
    for (int first = stage; first < layers; ++first) {
      int most = first;  // the largest run that fits ends here
      for (int beyond = layers; most < beyond;) {
        const int middle = (most + beyond + 1) / 2;
        if (fits(stage, first, middle))
          most = middle;
        else
          beyond = middle - 1;
      }
      for (int last = first + 1; last <= most; ++last) {
        const double seconds = before[at(last)] - before[at(first)];
        const double slowest = std::max(seconds, behind[at(last)]);
        if (seconds > best[at(first)]) break;
        // On a tie the later end wins, so that earlier stages take more layers.
        if (slowest == never || slowest > best[at(first)]) continue;
        best[at(first)] = slowest;
        end_of[at(first)] = last;
      }
    }
    behind = std::move(best);
  }
  if (behind[0] == never) return std::nullopt;
  std::vector<int> cut;
  for (int stage = 0, first = 0; stage < stages; ++stage) {
    const int last = ends[at(stages - 1 - stage)][at(first)];
    cut.push_back(last - first);
    first = last;
  }
  return cut;
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

struct PlannedLayers::Sized {
  Sized(LayerProfile of, int optimizer_states)
      : profile(std::move(of)), bytes(profile, optimizer_states) {}

  const LayerProfile profile;
  RunBytes bytes;
  // By what changes it: stages, micro-batches of the first stage, schedule, recomputation.
  std::map<std::string, std::vector<int>> cuts = {};
  std::map<std::vector<int>, CutCosts> costs = {};  // by the cut
};

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
  const auto refuse = [&](bool breaks, const char* rule, const auto&... why) {
    if (breaks) broken.push_back({rule, text("layers by formulas ", why...)});
  };
  refuse(strategy.tensor > 1, "tensor", "are not split over ", strategy.tensor, " tensor ranks");
  refuse(strategy.level > 0, "level", "have no ZeRO-", strategy.level);
  refuse(strategy.replicate > 1, "replicate", "have no ", strategy.replicate, " rows of shards");
  refuse(strategy.offload, "offload", "are not offloaded");
  refuse(strategy.sequence_parallel, "sequence_parallel", "have no token shards");
  refuse(strategy.precision != Precision::Own && strategy.precision != Precision::Fp32, "precision",
         "are in fp32, not in ", to_string(strategy.precision));
  refuse(strategy.schedule != "gpipe" && strategy.schedule != "1f1b", "schedule",
         "have the schedules gpipe and 1f1b, not ", strategy.schedule);
  refuse(strategy.chunks > 1, "interleaved", "have no stages of ", strategy.chunks, " chunks");
  refuse(strategy.recompute == BlockRecompute::Selective, "recompute",
         "have no attention to recompute: give none or all");
  refuse(strategy.recompute_layers > 0 || strategy.recompute_stages > 0, "recompute",
         "are recomputed in all stages or in none");
  return broken;
}

PlannedLayers::Sized& PlannedLayers::sized(int micro_batch) const {
  std::shared_ptr<Sized>& known = sized_[micro_batch];
  if (known == nullptr)
    known = std::make_shared<Sized>(profile_of(list_, micro_batch, machine_),
                                    options_.optimizer_states);
  return *known;
}

std::vector<int> PlannedLayers::cut_of(const Strategy& strategy, std::int64_t micro_batches) const {
  if (static_cast<int>(options_.balance.size()) == strategy.pipeline) return options_.balance;
  // The fastest cut is the same for all micro-batches, because times are proportional to them.
  std::vector<int>& fastest = fastest_[strategy.pipeline];
  if (fastest.empty()) fastest = balance_by_time(sized(1).profile, strategy.pipeline);
  Sized& all = sized(strategy.micro_batch);
  const auto [found, is_new] = all.cuts.try_emplace(
      text(strategy.pipeline, " ", micro_batches_in_flight(strategy, micro_batches, 0), " ",
           strategy.schedule, " ", to_string(strategy.recompute)),
      fastest);
  if (!is_new) return found->second;
  const double budget = std::max(machine_.memory.value - machine_.reserved.value, 1.0);
  const auto fits = [&](int stage, int first, int last) {
    return all.bytes.of(first, last, micro_batches_in_flight(strategy, micro_batches, stage),
                        recompute_of(strategy)) <= budget;
  };
  bool all_fit = true;
  for (int stage = 0, first = 0; stage < strategy.pipeline; ++stage) {
    const int last = first + fastest[static_cast<std::size_t>(stage)];
    all_fit = all_fit && fits(stage, first, last);
    first = last;
  }
  if (all_fit) return found->second;
  // If no cut fits, the ledger of the fastest one shows the overshoot.
  if (auto cut = fastest_cut_that_fits(seconds_before_layers(all.profile), strategy.pipeline, fits))
    found->second = std::move(*cut);
  return found->second;
}

std::vector<Ledger> PlannedLayers::ledgers(const Strategy& strategy,
                                           std::int64_t micro_batches) const {
  Sized& all = sized(strategy.micro_batch);
  std::vector<Ledger> ledgers;
  int first = 0;
  for (const int count : cut_of(strategy, micro_batches)) {
    const int stage = static_cast<int>(ledgers.size());
    const double parameters = parameters_of_layers(all.profile, first, first + count);
    Ledger ledger{.stage = stage,
                  .parameters = parameters,
                  .gradients = parameters,
                  .optimizer = options_.optimizer_states * parameters};
    const double whole =
        all.bytes.of(first, first + count, micro_batches_in_flight(strategy, micro_batches, stage),
                     recompute_of(strategy));
    ledger.activations = whole - ledger.total();
    ledger.reserved = machine_.reserved.value;
    ledgers.push_back(ledger);
    first += count;
  }
  return ledgers;
}

const CutCosts& PlannedLayers::cut_costs(const Strategy& strategy,
                                         std::int64_t micro_batches) const {
  Sized& all = sized(strategy.micro_batch);
  std::vector<int> balance = cut_of(strategy, micro_batches);
  const auto known = all.costs.find(balance);
  if (known != all.costs.end()) return known->second;
  CutCosts costs =
      costs_of_cut(all.profile, balance, {.optimizer_states = options_.optimizer_states});
  return all.costs.emplace(std::move(balance), std::move(costs)).first->second;
}

StrategyCosts PlannedLayers::costs_without_table(const Strategy& strategy,
                                                 std::int64_t micro_batches) const {
  const LayerProfile& profile = sized(strategy.micro_batch).profile;
  const std::vector<int> balance = cut_of(strategy, micro_batches);
  const GroupPlace place = place_of_replicas(strategy, machine_);
  // All pairs of stages are taken to be in one node if each replica is.
  const bool whole = strategy.pipeline <= machine_.devices_per_node &&
                     (strategy.data == 1 || machine_.devices_per_node % strategy.pipeline == 0);
  const Reach reach = whole ? Reach::Inside : Reach::Between;
  StrategyCosts costs{.costs = cut_costs(strategy, micro_batches).costs};
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
  return costs;
}

StrategyCosts PlannedLayers::costs(const Strategy& strategy, std::int64_t micro_batches) const {
  StrategyCosts costs = costs_without_table(strategy, micro_batches);
  const auto compute = schedule::generate(
      strategy.schedule,
      {.stages = strategy.pipeline, .micro_batches = static_cast<int>(micro_batches)});
  const auto stages = static_cast<std::size_t>(strategy.pipeline);
  costs.table = schedule::add_optimizer_steps(schedule::add_reductions(schedule::lower(
      compute, {.routes = cut_costs(strategy, micro_batches).routes,
                .recompute = std::vector<schedule::Recompute>(stages, recompute_of(strategy))})));
  return costs;
}

}  // namespace trestle::plan
