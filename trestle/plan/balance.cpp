#include "trestle/plan/balance.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/shared_devices.h"

namespace trestle::plan {
namespace {

using Ranges = std::vector<std::pair<int, int>>;
// The cost of stage `stage` with the layers [first, last).
using StageCost = std::function<double(int stage, int first, int last)>;

constexpr double never = std::numeric_limits<double>::infinity();

// result[i]: whether the model may be cut before layer i.
std::vector<bool> places_to_cut(int layers, int stages, const Ranges& together) {
  if (stages < 1) throw UsageError(text("a model cannot be cut into ", stages, " stages"));
  if (layers < stages) {
    throw UsageError(text("a model of ", layers, " layers cannot be cut into ", stages, " stages"),
                     {.hint = "Use at most one stage a layer, or split a layer into several."});
  }
  std::vector<bool> may_cut(static_cast<std::size_t>(layers) + 1, true);
  for (const auto& [first, last] : together) {
    if (first < 0 || last < first || last >= layers)
      throw UsageError(text("layers ", first, " to ", last, " cannot stay together: there are ",
                            layers, ", counted from 0"));
    for (int i = first + 1; i <= last; ++i) may_cut.at(static_cast<std::size_t>(i)) = false;
  }
  const auto places = std::count(may_cut.begin() + 1, may_cut.end() - 1, true);
  if (places < stages - 1) {
    throw UsageError(
        text("a model of ", layers, " layers, of which some share a parameter, cannot be cut into ",
             stages, " stages: there are only ", places, " places to cut"),
        {.hint = "Use fewer devices."});
  }
  return may_cut;
}

// The cut whose most expensive stage is cheapest. Nothing if every cut has a stage of infinite
// cost.
std::optional<std::vector<int>> best_cut(int layers, int stages, const Ranges& together,
                                         const StageCost& cost) {
  const std::vector<bool> may_cut = places_to_cut(layers, stages, together);
  // best[k][i]: the smallest possible bottleneck of the layers from i on, in the last k stages.
  // first[k][i]: the number of layers of the first of these k stages.
  const auto rows = static_cast<std::size_t>(stages) + 1;
  const auto columns = static_cast<std::size_t>(layers) + 1;
  std::vector<std::vector<double>> best(rows, std::vector<double>(columns, never));
  std::vector<std::vector<int>> first(rows, std::vector<int>(columns, 0));
  best[0][static_cast<std::size_t>(layers)] = 0;
  for (int k = 1; k <= stages; ++k) {
    const auto& behind = best[static_cast<std::size_t>(k) - 1];
    for (int i = layers - k; i >= 0; --i) {
      double& least = best[static_cast<std::size_t>(k)][static_cast<std::size_t>(i)];
      for (int end = i + 1; end <= layers - k + 1; ++end) {
        const auto at = static_cast<std::size_t>(end);
        if (!may_cut[at] || behind[at] == never) continue;
        const double bottleneck = std::max(cost(stages - k, i, end), behind[at]);
        // On a tie the later end wins, so that earlier stages take more layers.
        if (bottleneck == never || bottleneck > least) continue;
        least = bottleneck;
        first[static_cast<std::size_t>(k)][static_cast<std::size_t>(i)] = end - i;
      }
    }
  }
  if (best[static_cast<std::size_t>(stages)][0] == never) return std::nullopt;
  std::vector<int> result;
  for (int k = stages, i = 0; k > 0; --k) {
    result.push_back(first[static_cast<std::size_t>(k)][static_cast<std::size_t>(i)]);
    i += result.back();
  }
  return result;
}

int count(const LayerProfile& profile) { return static_cast<int>(profile.layers.size()); }

std::vector<double> sums(const std::vector<double>& costs) {
  std::vector<double> before(costs.size() + 1, 0);  // before[i]: the sum of the first i layers
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  return before;
}

std::vector<double> times(const LayerProfile& profile) {
  std::vector<double> result;
  for (const LayerCost& layer : profile.layers) result.push_back(layer.forward + layer.backward);
  return result;
}

void check_sizes(const LayerProfile& profile, const SizeOptions& options) {
  if (!(options.loss_memory >= 0))
    throw UsageError(text("loss_memory is ", options.loss_memory, ", below 0"));
  if (options.optimizer_states < 0 || options.micro_batches < 1)
    throw UsageError(text("optimizer_states is ", options.optimizer_states, " and micro_batches ",
                          options.micro_batches),
                     {.hint = "The first is at least 0, the second at least 1."});
  if (!options.step_transients.empty() && options.step_transients.size() != profile.layers.size())
    throw UsageError(text("step_transients has ", options.step_transients.size(), " entries for ",
                          profile.layers.size(), " layers"));
}

bool inside(int layer, int first, int last) { return layer >= first && layer < last; }

// Computed in double: many micro-batches of large layers overflow an integer.
Bytes bytes_of_layers(const LayerProfile& profile, int first, int last,
                      const SizeOptions& options) {
  double fixed = 0;
  double kept = 0;       // by the graph of one micro-batch
  double inputs = 0;     // of one micro-batch
  double transient = 0;  // the largest
  double step = 0;       // the largest
  for (int i = first; i < last; ++i) {
    const LayerCost& layer = profile.layers.at(static_cast<std::size_t>(i));
    fixed += static_cast<double>(layer.parameters) +
             static_cast<double>(layer.trained()) * (1 + options.optimizer_states) +
             static_cast<double>(layer.buffers);
    kept += static_cast<double>(layer.inner);
    transient = std::max(transient, static_cast<double>(layer.transient));
    if (!options.step_transients.empty())
      step =
          std::max(step, static_cast<double>(options.step_transients[static_cast<std::size_t>(i)]));
  }
  for (const TiedCost* copy : copies_in(profile, first, last))
    fixed += static_cast<double>(copy->bytes + copy->gradient());
  const std::vector<int> memory = memory_of_values(profile);
  std::vector<double> saved(profile.values.size(), 0);  // by the value whose memory it is
  for (std::size_t i = 0; i < profile.values.size(); ++i) {
    const ValueCost& value = profile.values[i];
    const auto here = [&](int layer) { return inside(layer, first, last); };
    const bool made = here(value.from);
    const bool taken = std::any_of(value.to.begin(), value.to.end(), here);
    if (!made && taken) inputs += static_cast<double>(value.bytes);
    if (made && std::count(value.to.begin(), value.to.end(), count(profile)) > 0)
      transient = std::max(transient, options.loss_memory * static_cast<double>(value.bytes));
    double& bytes = saved[static_cast<std::size_t>(memory[i])];
    if ((made || taken) && std::any_of(value.saved_by.begin(), value.saved_by.end(), here))
      bytes = std::max(bytes, static_cast<double>(value.bytes));
  }
  kept += std::accumulate(saved.begin(), saved.end(), 0.0);
  const double all = options.micro_batches;
  using schedule::Recompute;
  const double recomputed = options.recompute == Recompute::Never    ? 0
                            : options.recompute == Recompute::Always ? all
                                                                     : all - 1;
  // Only one recomputed micro-batch has a graph at a time.
  const double graphs = options.recompute == Recompute::Never ? all : 1;
  const double bytes = fixed + std::max(recomputed * inputs + graphs * kept + transient, step);
  constexpr Bytes most = std::numeric_limits<Bytes>::max();
  return bytes < static_cast<double>(most) ? static_cast<Bytes>(bytes) : most;
}

// Numbers from 0, in the order of the devices' first stages.
std::vector<int> numbered_devices(std::size_t stages, const std::vector<int>& device_of_stage) {
  std::vector<int> numbers(stages);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (device_of_stage.empty()) {
    if (stages == 0) throw UsageError("a model cannot be cut into 0 stages");
    return numbers;
  }
  if (device_of_stage.size() != stages)
    throw UsageError(
        text("devices of ", device_of_stage.size(), " stages, but budgets of ", stages));
  std::vector<int> seen;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto known = std::find(seen.begin(), seen.end(), device_of_stage[stage]);
    numbers[stage] = static_cast<int>(known - seen.begin());
    if (known == seen.end()) seen.push_back(device_of_stage[stage]);
  }
  return numbers;
}

std::optional<std::vector<int>> cut_on_own_devices(const LayerProfile& profile,
                                                   const std::vector<Bytes>& budgets,
                                                   const SizeOptions& options) {
  const std::vector<double> before = sums(times(profile));
  const auto cost = [&](int stage, int first, int last) {
    const Bytes budget = budgets[static_cast<std::size_t>(stage)];
    if (budget > 0 && bytes_of_layers(profile, first, last, options) > budget) return never;
    return before[static_cast<std::size_t>(last)] - before[static_cast<std::size_t>(first)];
  };
  return best_cut(count(profile), static_cast<int>(budgets.size()), profile.together, cost);
}

std::optional<std::vector<int>> cut_on_shared_devices(const LayerProfile& profile,
                                                      const std::vector<Bytes>& budgets,
                                                      const SizeOptions& options,
                                                      const std::vector<int>& devices) {
  const std::vector<double> before = sums(times(profile));
  const int layers = count(profile);
  // The search needs each stage many times.
  std::vector<std::vector<double>> bytes(static_cast<std::size_t>(layers));
  for (int first = 0; first < layers; ++first)
    for (int last = first + 1; last <= layers; ++last)
      bytes[static_cast<std::size_t>(first)].push_back(
          static_cast<double>(bytes_of_layers(profile, first, last, options)));
  SharedDevices problem{
      .may_cut = places_to_cut(layers, static_cast<int>(budgets.size()), profile.together),
      .device_of_stage = devices,
      .seconds =
          [&](int first, int last) {
            return before[static_cast<std::size_t>(last)] - before[static_cast<std::size_t>(first)];
          },
      .bytes =
          [&](int first, int last) {
            return bytes[static_cast<std::size_t>(first)]
                        [static_cast<std::size_t>(last - first - 1)];
          }};
  for (std::size_t stage = 0; stage < devices.size(); ++stage)
    if (devices[stage] == std::ssize(problem.budgets))
      problem.budgets.push_back(static_cast<double>(budgets[stage]));
  return fastest_cut(problem);
}

}  // namespace

std::vector<int> balance(const std::vector<double>& costs, int stages, const Ranges& together) {
  const int layers = static_cast<int>(costs.size());
  for (int i = 0; i < layers; ++i) {
    if (!(costs[static_cast<std::size_t>(i)] >= 0))
      throw UsageError(text("layer ", i, " has the cost ", costs[static_cast<std::size_t>(i)],
                            ", which is no cost"));
  }
  const std::vector<double> before = sums(costs);
  const auto cost = [&](int /*stage*/, int first, int last) {
    return before[static_cast<std::size_t>(last)] - before[static_cast<std::size_t>(first)];
  };
  const auto cut = best_cut(layers, stages, together, cost);
  if (!cut) throw UsageError("the layers' costs are infinite");
  return *cut;
}

std::vector<int> balance_by_time(const LayerProfile& profile, int stages) {
  check(profile);
  return balance(times(profile), stages, profile.together);
}

Bytes stage_bytes(const LayerProfile& profile, int first, int last, const SizeOptions& options) {
  check(profile);
  check_sizes(profile, options);
  if (first < 0 || last < first || last > count(profile))
    throw UsageError(
        text("a stage cannot have the layers [", first, ", ", last, ") of ", count(profile)));
  return bytes_of_layers(profile, first, last, options);
}

std::vector<int> balance_by_size(const LayerProfile& profile, int stages,
                                 const SizeOptions& options) {
  check(profile);
  check_sizes(profile, options);
  const auto cost = [&](int /*stage*/, int first, int last) {
    return static_cast<double>(bytes_of_layers(profile, first, last, options));
  };
  return best_cut(count(profile), stages, profile.together, cost).value();
}

std::vector<int> balance_within(const LayerProfile& profile, const std::vector<Bytes>& budgets,
                                const SizeOptions& options,
                                const std::vector<int>& device_of_stage) {
  check(profile);
  check_sizes(profile, options);
  const std::vector<int> devices = numbered_devices(budgets.size(), device_of_stage);
  const bool shared = *std::max_element(devices.begin(), devices.end()) + 1 < std::ssize(devices);
  const auto cut = shared ? cut_on_shared_devices(profile, budgets, options, devices)
                          : cut_on_own_devices(profile, budgets, options);
  if (cut) return *cut;
  std::vector<std::string> needs;
  int first = 0;
  for (const int layers : balance_by_size(profile, static_cast<int>(budgets.size()), options)) {
    needs.push_back(format_bytes(bytes_of_layers(profile, first, first + layers, options)));
    first += layers;
  }
  throw UsageError(
      text("no cut into ", budgets.size(), " stages fits the budgets: the smallest needs ",
           join(needs, ", "), shared ? ", and some stages share a device" : ""),
      {.hint = "Use recomputation, more micro-batches, more devices or larger "
               "budgets."});
}

}  // namespace trestle::plan
